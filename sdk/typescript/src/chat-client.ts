/** Chats: requests, complete responses and streams. */

import type { BundleDefaults } from "./bundles.js";
import { findLocalGateway, environmentVariables } from "./environment.js";
import { PRODUCTION_GATEWAY, resolveGatewayUrl } from "./address.js";
import { checkOptions, currentConfig, normalizeApiKey, type ApiKey } from "./config.js";
import { errorFromCode, InvalidRequest, ModelNotFound, ProviderFailed, UsageError } from "./errors.js";
import { checkTimeout, createKeySource, HttpSession, notA, type Reply, type RequestOptions } from "./http.js";
import { parseWithSchema, type FromSchema, type JsonSchema } from "./schema.js";
import { EventSplitter } from "./sse.js";
import { EventStream, incompleteStream } from "./stream.js";
import {
  assistantMessage,
  ChatToolCall,
  ToolCallAssembler,
  toToolCalls,
  type AssistantMessage,
  type CallOf,
  type CustomTool,
  type Tool,
  type ToolCallDelta,
  type WireToolCall,
} from "./tools.js";

export const DEFAULT_MODEL = "gpt-4o-mini";
export const DEFAULT_RETRIES = 2;
export const DEFAULT_TIMEOUT_MS = 120_000;
export const JSON_HEADERS = { "content-type": "application/json", accept: "application/json" };
export const STREAM_HEADERS = { "content-type": "application/json", accept: "text/event-stream" };

const CLIENT_OPTIONS = ["gatewayUrl", "registryUrl", "bundles", "apiKey", "retries", "timeoutMs", "fetch", "WebSocket"];

/** The part of `WebSocket` that the SDK uses. */
export type WebSocketClass = new (url: string, protocols?: string | string[]) => WebSocket;

export interface ClientOptions {
  /** The URL of the gateway. `/v1` is added if it is missing. */
  gatewayUrl?: string | undefined;
  /** The URL of the registry, for `bundle`. */
  registryUrl?: string | undefined;
  /** Where bundles are kept and which ones are trusted, for `bundle` and for stages of pipelines. */
  bundles?: BundleDefaults | undefined;
  /** The key, or a function that returns one and is called again, once, after a 401. */
  apiKey?: ApiKey | undefined;
  /** How often a failed request is sent again. Default: 2. 0 turns retries off. */
  retries?: number | undefined;
  /** The longest wait for a byte from the server, in milliseconds. Default: 120,000. */
  timeoutMs?: number | undefined;
  /** Replaces the global `fetch`, for example with that of `expo/fetch`. */
  fetch?: typeof fetch | undefined;
  /** Replaces the global `WebSocket`. Node 20 has none. */
  WebSocket?: WebSocketClass | undefined;
}

export interface ContentPart {
  type: string;
  [field: string]: unknown;
}

/** A message in OpenAI's form. */
export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content?: string | readonly ContentPart[] | null | undefined;
  [field: string]: unknown;
}

export type Messages = string | readonly (Message | AssistantMessage)[];

/** Return a part of a message with an image: a URL, a data URL, or the bytes of a file. */
export function image(source: string | Uint8Array, mediaType = "image/png"): ContentPart {
  const url = typeof source === "string" ? source : `data:${mediaType};base64,${toBase64(source)}`;
  return { type: "image_url", image_url: { url } };
}

/** Return bytes in base64. */
export function toBase64(bytes: Uint8Array): string {
  let text = "";
  for (let offset = 0; offset < bytes.length; offset += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(offset, offset + 0x8000));
  }
  return btoa(text);
}

export interface ChatParameters extends RequestOptions {
  /** The model. Without it: `gpt-4o-mini`, or the first model that the gateway offers. */
  model?: string | undefined;
  max_tokens?: number | undefined;
  temperature?: number | undefined;
  top_p?: number | undefined;
  stop?: string | readonly string[] | undefined;
  tool_choice?: unknown;
  /** Other fields of the request go to the gateway unchanged. */
  [parameter: string]: unknown;
}

export interface ChatOptions<Tools extends readonly (Tool | CustomTool)[] = readonly (Tool | CustomTool)[], Schema extends JsonSchema = JsonSchema>
  extends ChatParameters {
  stream?: boolean | undefined;
  /** The tools that the model may call. `tool` makes typed ones. */
  tools?: Tools | undefined;
  /** The schema of the response. `parsed` then has the schema's type. */
  schema?: Schema | undefined;
}

export interface ChatUsage {
  promptTokens: number;
  completionTokens: number;
  totalTokens: number;
}

/** A part of a streamed response. `finishReason` follows the last text, and `usage` follows it. */
export interface ChatChunk {
  text: string;
  reasoning: string;
  finishReason?: string;
  usage?: ChatUsage;
  toolCall?: ToolCallDelta;
}

/** A complete response. */
export class ChatResult<Call = ChatToolCall, Parsed = unknown> {
  constructor(
    readonly text: string,
    readonly usage: ChatUsage | undefined,
    readonly model: string,
    readonly finishReason: string | undefined,
    readonly reasoning: string,
    readonly toolCalls: readonly Call[],
    readonly requestId: string | undefined,
    /** The JSON of the gateway. Undefined for the result of a stream. */
    readonly raw: unknown,
    private readonly schema?: JsonSchema,
  ) {}

  /** The response as a message, for the messages of the next request. */
  get message(): AssistantMessage {
    return assistantMessage(this.text, this.toolCalls as readonly ChatToolCall[]);
  }

  /** The value of a structured response. Throws ProviderFailed if the model did not write what the schema asks for. */
  get parsed(): Parsed {
    if (!this.schema) throw new UsageError("The request has no `schema`.");
    if (this.finishReason === "length") throw new ProviderFailed("The response is incomplete: it reached `max_tokens`.");
    return parseWithSchema(this.text, this.schema, "The response") as Parsed;
  }
}

interface WireDelta {
  content?: unknown;
  refusal?: unknown;
  reasoning_content?: unknown;
  reasoning?: unknown;
  tool_calls?: WireToolCall[] | null;
}

interface WireResponse {
  model?: unknown;
  choices?: { index?: number; message?: WireDelta; delta?: WireDelta | null; finish_reason?: string | null }[] | null;
  usage?: Record<string, unknown> | null;
  error?: { message?: string; code?: unknown; type?: string } | null;
}

/** Calls a gateway. `Client` of the main entry point adds speech, embeddings and bundles. */
export class ChatClient {
  /** The URL of the gateway, with `/v1`. */
  readonly gatewayUrl: string;
  protected readonly session: HttpSession;
  /** A function, so that `console.log` does not print the key. */
  protected readonly getOptions: () => ClientOptions;
  /** What the gateway offers in place of a default model that it does not have. */
  private readonly offered = new Map<string, string>();

  constructor(options: ClientOptions = {}) {
    checkOptions(options, CLIENT_OPTIONS, "new Client");
    const { retries = DEFAULT_RETRIES, timeoutMs = DEFAULT_TIMEOUT_MS } = options;
    if (!Number.isInteger(retries) || retries < 0) throw new InvalidRequest("`retries` is not a whole number.", { param: "retries" });
    checkTimeout(timeoutMs);
    const config = currentConfig();
    const environment = environmentVariables();
    const local = findLocalGateway(environment);
    this.getOptions = () => options;
    this.gatewayUrl = resolveGatewayUrl(options.gatewayUrl, config.gatewayUrl, environment, undefined, local?.url ?? PRODUCTION_GATEWAY);
    const key =
      normalizeApiKey(options.apiKey) ??
      config.apiKey ??
      normalizeApiKey(environment["SVC_API_KEY"]) ??
      (local && this.gatewayUrl === local.url ? local.apiKey : undefined);
    this.session = new HttpSession(this.gatewayUrl, createKeySource(key), { retries, timeoutMs, fetch: options.fetch });
  }

  /** Return a complete response, or with `stream: true` an iterator of its parts. */
  chat<const Tools extends readonly (Tool | CustomTool)[] = [], const Schema extends JsonSchema = JsonSchema>(
    messages: Messages,
    options: ChatOptions<Tools, Schema> & { stream: true },
  ): ChatStream<CallOf<Tools>, FromSchema<Schema>>;
  chat<const Tools extends readonly (Tool | CustomTool)[] = [], const Schema extends JsonSchema = JsonSchema>(
    messages: Messages,
    options?: ChatOptions<Tools, Schema> & { stream?: false | undefined },
  ): Promise<ChatResult<CallOf<Tools>, FromSchema<Schema>>>;
  chat<const Tools extends readonly (Tool | CustomTool)[] = [], const Schema extends JsonSchema = JsonSchema>(
    messages: Messages,
    options: ChatOptions<Tools, Schema>,
  ): Promise<ChatResult<CallOf<Tools>, FromSchema<Schema>>> | ChatStream<CallOf<Tools>, FromSchema<Schema>>;
  chat(messages: Messages, options: ChatOptions = {}): Promise<ChatResult> | ChatStream {
    if (options.stream) {
      return new ChatStream((signal) => this.openChat(messages, { ...options, signal }), options);
    }
    return this.completeChat(messages, options);
  }

  private async completeChat(messages: Messages, options: ChatOptions): Promise<ChatResult> {
    const reply = await this.openChat(messages, options);
    const raw = (await reply.json("a chat completion")) as WireResponse | null;
    const choice = raw?.choices?.[0];
    if (!choice?.message) throw notA("a chat completion", reply.requestId);
    const { message } = choice;
    return new ChatResult(
      textOf(message.content) + textOf(message.refusal),
      usageOf(raw?.usage),
      textOf(raw?.model),
      choice.finish_reason ?? undefined,
      textOf(message.reasoning_content) || textOf(message.reasoning),
      toToolCalls(message.tool_calls ?? [], options.tools, reply.requestId),
      reply.requestId,
      raw,
      options.schema,
    );
  }

  private openChat(messages: Messages, options: ChatOptions): Promise<Reply> {
    const { model, signal, timeoutMs, schema, stream, ...parameters } = options;
    const body: Record<string, unknown> = {
      messages: typeof messages === "string" ? [{ role: "user", content: messages }] : messages,
      ...parameters,
    };
    if (schema) body["response_format"] = { type: "json_schema", json_schema: { name: "response", schema, strict: true } };
    if (stream) Object.assign(body, { stream: true, stream_options: parameters["stream_options"] ?? { include_usage: true } });
    const requestOptions = { signal, timeoutMs };
    return this.withModel(model, DEFAULT_MODEL, undefined, requestOptions, (name) =>
      this.session.open(
        {
          method: "POST",
          path: "/chat/completions",
          headers: stream ? STREAM_HEADERS : JSON_HEADERS,
          body: encodeJson({ model: name, ...body }),
          isTextStream: stream === true,
        },
        requestOptions,
      ),
    );
  }

  /** Send a request. If the caller named no model and the default is missing, use the gateway's first one from now on. */
  protected async withModel<T>(
    model: string | undefined,
    fallback: string,
    kind: string | undefined,
    options: RequestOptions,
    send: (model: string) => Promise<T>,
  ): Promise<T> {
    if (model !== undefined) return send(model);
    try {
      return await send(this.offered.get(fallback) ?? fallback);
    } catch (error) {
      if (!(error instanceof ModelNotFound)) throw error;
      const offered = (await this.models(options)).find((each) => each.kind === kind);
      if (!offered) throw error;
      this.offered.set(fallback, offered.id);
      return send(offered.id);
    }
  }

  /** Return the models that the key may use. */
  async models(options: RequestOptions = {}): Promise<ModelInfo[]> {
    const reply = await this.session.open({ method: "GET", path: "/models", headers: { accept: "application/json" } }, options);
    const raw = (await reply.json("a model list")) as { data?: unknown } | null;
    if (!Array.isArray(raw?.data)) throw notA("a model list", reply.requestId);
    return (raw.data as Record<string, unknown>[]).map((each) => ({
      id: textOf(each["id"]),
      ownedBy: textOf(each["owned_by"]),
      created: numberOf(each["created"]),
      contextWindow: numberOf(each["context_window"]) || undefined,
      useCase: textOf(each["use_case"]) || undefined,
      kind: textOf(each["kind"]) || undefined,
    }));
  }
}

/** A model that the key may use. */
export interface ModelInfo {
  id: string;
  ownedBy: string;
  created: number;
  contextWindow: number | undefined;
  useCase: string | undefined;
  /** The purpose of the model. Undefined means chats. */
  kind: string | undefined;
}

/**
 * A streamed response: an async iterator of its parts. The request is sent when the iteration starts.
 *
 * The iteration throws if the stream is interrupted. `break` cancels the response.
 */
export class ChatStream<Call = ChatToolCall, Parsed = unknown> extends EventStream<ChatChunk> {
  /** The text so far. */
  text = "";
  reasoning = "";
  model = "";
  /** Undefined until the response is complete. */
  finishReason: string | undefined;
  usage: ChatUsage | undefined;
  /** The tool calls, when the response is complete. */
  toolCalls: readonly Call[] = [];
  /** The provider that the gateway chose. */
  provider: string | undefined;

  constructor(
    start: (signal: AbortSignal) => Promise<Reply>,
    private readonly chatOptions: ChatOptions,
  ) {
    super(start, chatOptions.signal);
  }

  /** The response as a message, for the messages of the next request. */
  get message(): AssistantMessage {
    return assistantMessage(this.text, this.toolCalls as readonly ChatToolCall[]);
  }

  /** Read to the end, and return the complete response. */
  async result(): Promise<ChatResult<Call, Parsed>> {
    await this.readToEnd();
    const { text, usage, model, finishReason, reasoning, toolCalls, requestId } = this;
    return new ChatResult(text, usage, model, finishReason, reasoning, toolCalls, requestId, undefined, this.chatOptions.schema);
  }

  protected override async *decode(reply: Reply): AsyncGenerator<ChatChunk, void, undefined> {
    const splitter = new EventSplitter();
    const assembler = new ToolCallAssembler();
    this.provider = reply.header("x-svc-provider") ?? undefined;
    let done = false;
    while (!done) {
      const text = await reply.readText();
      done = text === undefined;
      for (const event of text === undefined ? splitter.flush() : splitter.feed(text)) {
        const data = event.data?.trim();
        done ||= data === "[DONE]";
        if (data === "[DONE]") break;
        if (data) yield* this.decodeEvent(parseEvent(data, reply.requestId), event.name, assembler);
      }
    }
    if (this.finishReason === undefined) throw incompleteStream(reply);
  }

  private *decodeEvent(raw: WireResponse, name: string | undefined, assembler: ToolCallAssembler): Generator<ChatChunk, void, undefined> {
    if (raw.error || name === "error") throw streamError(raw.error, this.requestId);
    this.model ||= textOf(raw.model);
    const choice = raw.choices?.find((each) => (each.index ?? 0) === 0);
    if (choice && this.finishReason === undefined) {
      const delta = choice.delta ?? {};
      const text = textOf(delta.content) + textOf(delta.refusal);
      const reasoning = textOf(delta.reasoning_content) || textOf(delta.reasoning);
      this.text += text;
      this.reasoning += reasoning;
      if (text || reasoning) yield { text, reasoning };
      for (const [position, each] of (delta.tool_calls ?? []).entries()) {
        const toolCall = assembler.add(each, position);
        if (toolCall) yield { text: "", reasoning: "", toolCall };
      }
      if (choice.finish_reason) {
        for (const toolCall of assembler.completeInputs()) yield { text: "", reasoning: "", toolCall };
        this.toolCalls = assembler.finish(this.chatOptions.tools, this.requestId) as Call[];
        this.finishReason = choice.finish_reason;
        yield { text: "", reasoning: "", finishReason: choice.finish_reason };
      }
    }
    const usage = usageOf(raw.usage);
    if (usage) {
      this.usage = usage;
      if (this.finishReason !== undefined) yield { text: "", reasoning: "", usage };
    }
  }
}

function parseEvent(data: string, requestId: string | undefined): WireResponse {
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch (cause) {
    throw new ProviderFailed("The provider sent an invalid response.", { cause, requestId });
  }
  if (typeof value !== "object" || value === null) throw new ProviderFailed("The provider sent an invalid response.", { requestId });
  return value;
}

/** Return the error of an event in a stream. */
export function streamError(error: WireResponse["error"], requestId: string | undefined): Error {
  const code = typeof error?.code === "string" ? error.code : "provider_error";
  return errorFromCode(code, error?.message ?? "The provider reported an error.", 502, { requestId });
}

/** Encode a body. Throws InvalidRequest, also for a number that JSON does not have. */
export function encodeJson(body: Record<string, unknown>): string {
  let text: string;
  try {
    text = JSON.stringify(body);
  } catch (cause) {
    throw new InvalidRequest(`The request cannot be encoded as JSON: ${(cause as Error).message}.`, { cause });
  }
  if (text.includes("null")) rejectNonFinite(body, ""); // JSON.stringify writes null instead of NaN
  return text;
}

function rejectNonFinite(value: unknown, path: string): void {
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new InvalidRequest(`${path} must be a finite number, not ${value}.`, { param: path });
  }
  if (Array.isArray(value)) value.forEach((item, index) => rejectNonFinite(item, `${path}[${index}]`));
  else if (typeof value === "object" && value !== null) {
    for (const [name, item] of Object.entries(value)) rejectNonFinite(item, path ? `${path}.${name}` : name);
  }
}

/** Return a text, or the joined texts of content parts. */
export function textOf(value: unknown): string {
  if (typeof value === "string") return value;
  if (!Array.isArray(value)) return "";
  return (value as ({ text?: unknown } | null)[]).map((part) => (typeof part?.text === "string" ? part.text : "")).join("");
}

export function numberOf(value: unknown): number {
  return typeof value === "number" ? value : 0;
}

function usageOf(usage: Record<string, unknown> | null | undefined): ChatUsage | undefined {
  if (!usage) return undefined;
  const promptTokens = numberOf(usage["prompt_tokens"]);
  const completionTokens = numberOf(usage["completion_tokens"]);
  return { promptTokens, completionTokens, totalTokens: promptTokens + completionTokens };
}
