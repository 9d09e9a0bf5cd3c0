/** The Responses API: https://platform.openai.com/docs/api-reference/responses */

import { numberOf, textOf } from "./chat-client.js";
import { errorFromCode, GatewayFailed, ProviderFailed, type SvcError } from "./errors.js";
import { notA, type Reply, type RequestOptions } from "./http.js";
import { EventSplitter } from "./sse.js";
import { EventStream, incompleteStream } from "./stream.js";
import { ChatToolCall, inputArguments, type ToolCallDelta } from "./tools.js";

export type ResponseInput = string | readonly Record<string, unknown>[];

export interface ResponsesOptions extends RequestOptions {
  model?: string | undefined;
  stream?: boolean | undefined;
  instructions?: string | undefined;
  max_output_tokens?: number | undefined;
  /** Other fields of the request go to the gateway unchanged. */
  [parameter: string]: unknown;
}

export interface ResponseUsage {
  inputTokens: number;
  outputTokens: number;
  totalTokens: number;
  cachedTokens: number;
  reasoningTokens: number;
}

/** A response. `raw` is the JSON of the server, and `output` its items, for the input of the next request. */
export interface ResponseResult {
  id: string;
  /** `completed` or `incomplete`. */
  status: string;
  text: string;
  usage: ResponseUsage | undefined;
  model: string;
  toolCalls: readonly ChatToolCall[];
  reasoning: string;
  /** `max_output_tokens` or `content_filter`. */
  incompleteReason: string | undefined;
  output: readonly Item[];
  requestId: string | undefined;
  raw: Record<string, unknown>;
}

/** An event of a stream. `text`, `reasoning` and `toolCall` are what the event adds. `raw` is its JSON. */
export interface ResponseStreamEvent {
  type: string;
  text: string;
  reasoning: string;
  raw: Record<string, unknown>;
  toolCall?: ToolCallDelta;
}

type Item = Record<string, unknown>;

/** Return the response of JSON. Throws the error of a response that failed, and GatewayFailed for other JSON. */
export function toResponseResult(value: unknown, requestId: string | undefined): ResponseResult {
  const raw = (value ?? {}) as Record<string, unknown>;
  if (raw["object"] !== "response") throw notA("one of the Responses API", requestId);
  if (raw["status"] === "failed") throw toError(raw["error"], requestId);
  if (!Array.isArray(raw["output"])) throw notA("one of the Responses API", requestId);
  const output = raw["output"] as Item[];
  return {
    id: textOf(raw["id"]),
    status: textOf(raw["status"]) || "completed",
    text: textsOf(output, "message", "content"),
    usage: usageOf(raw["usage"] as Record<string, unknown> | null | undefined),
    model: textOf(raw["model"]),
    toolCalls: output.filter(isToolCall).map(toToolCall),
    reasoning: textsOf(output, "reasoning", "content") || textsOf(output, "reasoning", "summary"),
    incompleteReason: textOf((raw["incomplete_details"] as Item | null | undefined)?.["reason"]) || undefined,
    output,
    requestId,
    raw,
  };
}

/** A streamed response: an async iterator of its events. It throws if the response fails or is interrupted. */
export class ResponseStream extends EventStream<ResponseStreamEvent> {
  /** The text so far. */
  text = "";
  private response: ResponseResult | undefined;
  private readonly calls = new Map<unknown, ToolCallDelta>();

  /** Read to the end, and return the complete response. */
  async result(): Promise<ResponseResult> {
    await this.readToEnd();
    return this.response as ResponseResult;
  }

  protected override async *decode(reply: Reply): AsyncGenerator<ResponseStreamEvent, void, undefined> {
    const splitter = new EventSplitter();
    for (;;) {
      const text = await reply.readText();
      for (const event of text === undefined ? splitter.flush() : splitter.feed(text)) {
        const data = event.data?.trim();
        if (data && data !== "[DONE]") yield this.decodeEvent(data);
        if (this.response) return;
      }
      if (text === undefined) throw incompleteStream(reply);
    }
  }

  private decodeEvent(data: string): ResponseStreamEvent {
    let raw: Record<string, unknown>;
    try {
      raw = JSON.parse(data) as Record<string, unknown>;
    } catch (cause) {
      throw new ProviderFailed("The server sent an event that is not one of the Responses API.", { cause, requestId: this.requestId });
    }
    const type = textOf(raw["type"]);
    const response = raw["response"] as Item | undefined;
    if (type === "error") throw toError(raw["error"] ?? raw, this.requestId);
    if (type === "response.failed") throw toError(response?.["error"], this.requestId);
    if (type === "response.completed" || type === "response.incomplete") this.response = toResponseResult(response, this.requestId);
    const delta = textOf(raw["delta"]);
    const isText = type === "response.output_text.delta" || type === "response.refusal.delta";
    const isReasoning = type === "response.reasoning_text.delta" || type === "response.reasoning_summary_text.delta";
    if (isText) this.text += delta;
    const toolCall = this.toolCallOf(type, raw, delta);
    return { type, text: isText ? delta : "", reasoning: isReasoning ? delta : "", raw, ...(toolCall && { toolCall }) };
  }

  /** Return the part of a tool call that an event adds. */
  private toolCallOf(type: string, raw: Item, delta: string): ToolCallDelta | undefined {
    const place = raw["output_index"];
    if (type === "response.output_item.added") {
      const item = (raw["item"] ?? {}) as Item;
      if (!isToolCall(item)) return undefined;
      const call = { index: this.calls.size, id: textOf(item["call_id"]), name: textOf(item["name"]), argumentsJson: "" };
      this.calls.set(place, call);
      return call;
    }
    if (type !== "response.function_call_arguments.delta" && type !== "response.custom_tool_call_input.delta") return undefined;
    const call = this.calls.get(place);
    return call && { ...call, argumentsJson: delta };
  }
}

function textsOf(items: readonly Item[], type: string, field: string): string {
  return items
    .filter((item) => item["type"] === type && Array.isArray(item[field]))
    .flatMap((item) => item[field] as Item[])
    .map((part) => textOf(part["text"]) || textOf(part["refusal"]))
    .join("");
}

function isToolCall(item: Item): boolean {
  return item["type"] === "function_call" || item["type"] === "custom_tool_call";
}

/** Return the call. The free text of a custom tool becomes an object with the field `input`. */
function toToolCall(item: Item): ChatToolCall {
  const text = item["type"] === "custom_tool_call" ? inputArguments(textOf(item["input"])) : textOf(item["arguments"]);
  return new ChatToolCall(textOf(item["call_id"]), textOf(item["name"]), text);
}

function usageOf(usage: Record<string, unknown> | null | undefined): ResponseUsage | undefined {
  if (!usage) return undefined;
  const details = { ...(usage["input_tokens_details"] as object | null), ...(usage["output_tokens_details"] as object | null) } as Item;
  return {
    inputTokens: numberOf(usage["input_tokens"]),
    outputTokens: numberOf(usage["output_tokens"]),
    totalTokens: numberOf(usage["total_tokens"]),
    cachedTokens: numberOf(details["cached_tokens"]),
    reasoningTokens: numberOf(details["reasoning_tokens"]),
  };
}

function toError(error: unknown, requestId: string | undefined): SvcError {
  const { code, message } = (error ?? {}) as { code?: unknown; message?: unknown };
  const failure = errorFromCode(textOf(code), textOf(message) || "The response failed.", 502, { requestId });
  // An unknown code: the server responded, and the model failed.
  return failure instanceof GatewayFailed ? new ProviderFailed(failure.message, { requestId }) : failure;
}
