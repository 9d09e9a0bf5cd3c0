/** Sends a chat request and follows its stream. */
import type { ChatChunk } from "../../../build/schema";
import { ApiError, request } from "../../api/client";
import { readEvents } from "../../api/events";
import type { ChatBody } from "./request";
import { type Answer, type AnswerError, type ToolCall, hasContent, newAnswer } from "./types";

/** More often would only cost time, as the screen shows no more. */
const UPDATE_MILLISECONDS = 50;

interface ToolCallDelta {
  index?: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

/** Fields that the gateway passes on and does not describe: `refusal` of OpenAI, and those of OpenRouter, Ollama and vLLM. */
interface ProviderDelta {
  refusal?: string | null;
  reasoning?: string | null;
  images?: { image_url?: { url?: string } }[] | null;
}

type Chunk = Partial<ChatChunk> & { error?: { message?: string; code?: string } };

/**
 * Streams one answer and calls `onUpdate` with each new state of it. Never throws: the last state says how it ended.
 * An abort of `signal` closes the connection, and the gateway then closes that to the provider.
 */
export async function streamAnswer(
  body: ChatBody, signal: AbortSignal, onUpdate: (answer: Answer) => void,
): Promise<Answer> {
  const started = performance.now();
  let answer = newAnswer();
  let timer = 0;
  const update = (patch: Partial<Answer>): void => {
    answer = { ...answer, ...patch };
    timer ||= window.setTimeout(() => {
      timer = 0;
      onUpdate(answer);
    }, UPDATE_MILLISECONDS);
  };
  let error: AnswerError | null = null;
  let isDone = false;
  try {
    const response = await request("/v1/chat/completions", { method: "POST", json: body, signal });
    update({ requestId: response.headers.get("x-request-id"), provider: response.headers.get("x-svc-provider") });
    for await (const { data } of readEvents(response)) {
      if (data === "[DONE]") {
        isDone = true;
        break;
      }
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error) {
        error = { message: chunk.error.message ?? "The stream broke.", status: 200, code: chunk.error.code ?? "unknown" };
        break;
      }
      const patch = applyChunk(answer, chunk);
      if (answer.firstTokenMilliseconds === null && hasContent({ ...answer, ...patch })) {
        patch.firstTokenMilliseconds = performance.now() - started;
      }
      update(patch);
    }
  } catch (caught) {
    error = signal.aborted ? null : describe(caught);
    if (caught instanceof ApiError) answer = { ...answer, requestId: caught.requestId };
  }
  if (!isDone && !error && !signal.aborted) {
    error = { message: "The connection ended before the answer was complete.", status: 200, code: "connection_error" };
  }
  clearTimeout(timer);
  const status = isDone ? "complete" : signal.aborted ? "stopped" : hasContent(answer) ? "interrupted" : "failed";
  answer = { ...answer, status, error, totalMilliseconds: performance.now() - started };
  onUpdate(answer);
  return answer;
}

function describe(error: unknown): AnswerError {
  if (error instanceof ApiError) {
    const wait = error.retryAfterSeconds === null ? "" : ` Try again in ${error.retryAfterSeconds} s.`;
    return { message: error.message + wait, status: error.status, code: error.code };
  }
  if (error instanceof SyntaxError) {
    return { message: "The gateway sent an event that is not JSON.", status: 200, code: "invalid_response" };
  }
  return { message: "The connection was lost before the answer was complete.", status: 200, code: "connection_error" };
}

function applyChunk(answer: Answer, chunk: Chunk): Partial<Answer> {
  const patch: Partial<Answer> = {};
  if (chunk.usage) {
    patch.promptTokens = chunk.usage.prompt_tokens;
    patch.completionTokens = chunk.usage.completion_tokens;
  }
  const choice = chunk.choices?.[0];
  if (!choice) return patch;
  if (choice.finish_reason) patch.finishReason = choice.finish_reason;
  const delta = choice.delta as typeof choice.delta & ProviderDelta;
  if (delta.content) patch.text = answer.text + delta.content;
  if (delta.refusal) patch.refusal = answer.refusal + delta.refusal;
  const reasoning = delta.reasoning_content || delta.reasoning; // some providers send both, with the same text
  if (reasoning) patch.reasoning = answer.reasoning + reasoning;
  const images = (delta.images ?? []).map((image) => image.image_url?.url ?? "").filter(Boolean);
  if (images.length) patch.images = [...answer.images, ...images];
  if (delta.tool_calls) patch.toolCalls = mergeToolCalls(answer.toolCalls, delta.tool_calls);
  return patch;
}

function mergeToolCalls(calls: ToolCall[], deltas: ToolCallDelta[]): ToolCall[] {
  const merged = [...calls];
  for (const delta of deltas) {
    const index = delta.index ?? Math.max(0, merged.length - 1);
    const call = merged[index] ?? { id: "", name: "", arguments: "" };
    merged[index] = {
      id: call.id || (delta.id ?? ""),
      name: call.name + (delta.function?.name ?? ""),
      arguments: call.arguments + (delta.function?.arguments ?? ""),
    };
  }
  return merged;
}
