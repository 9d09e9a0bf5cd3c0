/** The answer of one model: its text, reasoning and tool calls, how it ended, and what it took. */
import { useEffect } from "preact/hooks";
import type { Entry } from "../../../build/schema";
import { get } from "../../api/client";
import { CodeBlock, CopyButton } from "../../components/copy";
import { formatCount, formatMilliseconds, formatUsd } from "../../components/format";
import { pagePath } from "../../router";
import { Markdown } from "./markdown";
import { type Answer, type AnswerError, type AnswerStatus, type Column, columnLabel, toolResultKey } from "./types";

/** The ledger has an entry within 2 s of the response. */
const COST_DELAYS_MILLISECONDS = [400, 800, 1500, 2500];

/** A shorter answer came at once, and its speed would say nothing. */
const MIN_SPEED_MILLISECONDS = 20;

export interface AnswerActions {
  onChange: (patch: Partial<Answer>) => void;
  onToolResult: (key: string, result: string) => void;
  onStop: () => void;
  /** Only for the last turn. */
  onRegenerate: (() => void) | null;
  onShowCode: () => void;
}

export function AnswerCard(
  { column, answer, toolResults, actions }: {
    column: Column; answer: Answer; toolResults: Record<string, string>; actions: AnswerActions;
  },
) {
  const isStreaming = answer.status === "streaming";
  useCost(answer, actions.onChange);
  const model = columnLabel(column);
  return (
    <article class="card answer" aria-label={`Answer of ${model}`}>
      <header class="row answer-head">
        <h2>{model}</h2>
        {answer.isRefused
          ? <span class="badge bad">Refused</span>
          : <StatusBadge status={answer.status} finishReason={answer.finishReason} />}
      </header>
      {answer.reasoning && (
        <details class="reasoning" open={isStreaming && !answer.text}>
          <summary>Reasoning</summary>
          <p>{answer.reasoning}</p>
        </details>
      )}
      <div class="answer-text" data-status={answer.status}>
        {answer.text && <Markdown text={answer.text} />}
        {isStreaming && <span class="cursor" aria-hidden="true" />}
        {answer.toolCalls.map((call, index) => (
          <div key={index} class="tool-call">
            <h3>Calls <code>{call.name || "a tool"}</code></h3>
            <CodeBlock code={prettyJson(call.arguments)} label={`Arguments of ${call.name}`} />
            {answer.status === "complete" && (
              <label class="field">
                Result of {call.name}
                <textarea
                  class="mono" rows={2} value={toolResults[toolResultKey(column, call)] ?? ""}
                  onInput={(event) => actions.onToolResult(toolResultKey(column, call), event.currentTarget.value)}
                />
              </label>
            )}
          </div>
        ))}
        {answer.status === "complete" && !answer.text && !answer.toolCalls.length && <p class="hint">The answer is empty.</p>}
      </div>
      {answer.error && <AnswerProblem error={answer.error} />}
      <Metrics answer={answer} />
      <footer class="row">
        {isStreaming
          ? <button type="button" aria-label={`Stop ${model}`} onClick={actions.onStop}>Stop</button>
          : (
            <>
              {answer.text && <CopyButton text={answer.text} />}
              <button type="button" aria-label={`Code of ${model}`} onClick={actions.onShowCode}>Code</button>
              {answer.requestId && (
                <a class="answer-details" aria-label={`Details of ${model}`} href={detailsAddress(answer.requestId)}>Details</a>
              )}
              {actions.onRegenerate && (
                <button type="button" aria-label={`Regenerate ${model}`} onClick={actions.onRegenerate}>
                  Regenerate
                </button>
              )}
            </>
          )}
      </footer>
    </article>
  );
}

const TOO_LONG = /context.?(length|size|window)|prompt is too long|maximum context/i;
const MAX_MESSAGE_CHARACTERS = 400;

function AnswerProblem({ error }: { error: AnswerError }) {
  const isTooLong = error.code === "context_length_exceeded" || (error.status === 400 && TOO_LONG.test(error.message));
  const message = error.message.length > MAX_MESSAGE_CHARACTERS ? `${error.message.slice(0, MAX_MESSAGE_CHARACTERS)}…` : error.message;
  return (
    <div class="notice error">
      {isTooLong && <p>The conversation is longer than this model can read. Shorten the prompt, start a new conversation, or choose another model.</p>}
      <p class={isTooLong ? "hint" : ""}>{message}</p>
      <p class="hint">
        {error.status >= 400 && `Status ${error.status}, `}code {error.code}
      </p>
    </div>
  );
}

const BADGES: Record<AnswerStatus, [string, string]> = {
  streaming: ["", "Answering"],
  complete: ["good", "Complete"],
  stopped: ["warning", "Stopped"],
  interrupted: ["bad", "Interrupted"],
  failed: ["bad", "Failed"],
};

function StatusBadge({ status, finishReason }: { status: AnswerStatus; finishReason: string | null }) {
  if (status === "complete" && finishReason === "length") return <span class="badge warning">Cut off at the maximum tokens</span>;
  if (status === "complete" && finishReason === "content_filter") return <span class="badge warning">Cut off by the content filter</span>;
  const [tone, label] = BADGES[status];
  return <span class={`badge ${tone}`}>{label}</span>;
}

function Metrics({ answer }: { answer: Answer }) {
  const tokens = answer.promptTokens === null && answer.completionTokens === null ? "unknown" : [
    answer.promptTokens === null ? "? in" : `${formatCount(answer.promptTokens)} in`,
    answer.completionTokens === null ? "? out" : `${formatCount(answer.completionTokens)} out`,
  ].join(" · ") + (answer.isEstimated ? " (estimated)" : "");
  const isPending = answer.costUsd === undefined && answer.requestId !== null;
  return (
    <dl class="metrics">
      <div><dt>First token</dt><dd>{formatMilliseconds(answer.firstTokenMilliseconds)}</dd></div>
      <div><dt>Speed</dt><dd>{formatSpeed(answer)}</dd></div>
      <div><dt>Tokens</dt><dd>{answer.status === "streaming" && tokens === "unknown" ? "…" : tokens}</dd></div>
      <div><dt>Cost</dt><dd>{answer.status === "streaming" || isPending ? "…" : formatUsd(answer.costUsd)}</dd></div>
      {answer.provider && <div><dt>Provider</dt><dd>{answer.provider}</dd></div>}
    </dl>
  );
}

function formatSpeed({ completionTokens, firstTokenMilliseconds, totalMilliseconds }: Answer): string {
  if (completionTokens === null || firstTokenMilliseconds === null || totalMilliseconds === null) return "–";
  const milliseconds = totalMilliseconds - firstTokenMilliseconds;
  const seconds = milliseconds / 1000;
  return milliseconds < MIN_SPEED_MILLISECONDS ? "–" : `${formatCount(Math.round(completionTokens / seconds))} tokens/s`;
}

/** Reads cost and tokens from the ledger when the answer has ended. */
function useCost(answer: Answer, onChange: (patch: Partial<Answer>) => void): void {
  const isWanted = answer.status !== "streaming" && answer.requestId !== null && answer.costUsd === undefined;
  const { requestId } = answer;
  useEffect(() => {
    if (!isWanted) return undefined;
    const controller = new AbortController();
    const isAborted = (): boolean => controller.signal.aborted;
    void (async () => {
      for (const delay of COST_DELAYS_MILLISECONDS) {
        await new Promise((resolve) => { setTimeout(resolve, delay); });
        if (isAborted()) return;
        const entry = await findEntry(requestId ?? "", controller.signal).catch(() => null);
        if (isAborted()) return;
        if (!entry) {
          const isRefused = answer.status === "failed" && await wasRefused(requestId ?? "", controller.signal).catch(() => false);
          if (isAborted()) return;
          if (isRefused) {
            onChange({ isRefused, costUsd: 0 });
            return;
          }
          continue;
        }
        onChange({
          costUsd: isFree(entry) ? 0 : entry.cost_usd ?? null,
          promptTokens: answer.promptTokens ?? entry.prompt_tokens ?? null,
          completionTokens: answer.completionTokens ?? entry.completion_tokens ?? null,
          isEstimated: entry.estimated,
        });
        return;
      }
      onChange({ costUsd: null });
    })();
    return () => controller.abort();
  }, [isWanted, requestId]);
}

async function findEntry(requestId: string, signal: AbortSignal): Promise<Entry | null> {
  const { data } = await get("/v1/usage", { request: requestId }, signal);
  return (data[0] as Entry | undefined) ?? null; // totals come only with `by`
}

/** Whether the gateway refused the request, so that no provider received it. */
async function wasRefused(requestId: string, signal: AbortSignal): Promise<boolean> {
  const { data } = await get("/v1/requests/refused", { request: requestId }, signal);
  return data.length > 0;
}

/** Whether nothing was charged: a failed request without usage. */
function isFree(entry: Entry): boolean {
  return entry.status === "error" && entry.cost_usd === null && !entry.prompt_tokens && !entry.completion_tokens;
}

function detailsAddress(requestId: string): string {
  return `${pagePath("Requests")}?${new URLSearchParams({ request: requestId }).toString()}`;
}

function prettyJson(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still arriving, or written wrongly by the model
  }
}
