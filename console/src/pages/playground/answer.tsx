/** The answer of one model: its text, reasoning and tool calls, how it ended, and what it took. */
import { CodeBlock, CopyButton } from "../../components/copy";
import { formatCount, formatMilliseconds, formatUsd } from "../../components/format";
import { pagePath } from "../../router";
import { Markdown } from "./markdown";
import { AnswerImages } from "./images";
import {
  type Answer, type AnswerError, type AnswerStatus, type Column, columnLabel, finishedCalls, hasContent, toolResultKey,
} from "./types";
import { useCost } from "./use-cost";

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
  const isCostUnread = useCost(answer, actions.onChange);
  const model = columnLabel(column);
  const canHaveResults = finishedCalls(answer).length > 0;
  const copied = answer.text || answer.refusal;
  return (
    <article class="card answer" aria-label={`Answer of ${model}`}>
      <header class="row answer-head">
        <h2>{model}</h2>
        {answer.isRefused
          ? <span class="badge bad">Refused</span>
          : <StatusBadge answer={answer} />}
      </header>
      {answer.reasoning && (
        <details class="reasoning" open={isStreaming && !answer.text && !answer.refusal}>
          <summary>Reasoning</summary>
          <p>{answer.reasoning}</p>
        </details>
      )}
      <div class="answer-text" data-status={answer.status}>
        {answer.text && <Markdown text={answer.text} />}
        {answer.refusal && <p class="refusal">{answer.refusal}</p>}
        <AnswerImages images={answer.images} model={model} />
        {isStreaming && <span class="cursor" aria-hidden="true" />}
        {answer.toolCalls.map((call, index) => (
          <div key={index} class="tool-call">
            <h3>Calls <code>{call.name || "a tool"}</code></h3>
            <CodeBlock code={prettyJson(call.arguments)} label={`Arguments of ${call.name}`} />
            {canHaveResults && (
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
        {answer.status === "complete" && answer.toolCalls.length > 0 && !canHaveResults && (
          <p class="hint">The calls are cut off, and can have no results. Raise the maximum tokens, and regenerate the answer.</p>
        )}
        {answer.status === "complete" && !hasContent({ ...answer, reasoning: "" }) && <p class="hint">The answer is empty.</p>}
      </div>
      {answer.error && <AnswerProblem error={answer.error} />}
      <Metrics answer={answer} isCostUnread={isCostUnread} />
      <footer class="row">
        {isStreaming
          ? <button type="button" aria-label={`Stop ${model}`} onClick={actions.onStop}>Stop</button>
          : (
            <>
              {copied && <CopyButton text={copied} />}
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

function StatusBadge({ answer: { status, finishReason, refusal, text } }: { answer: Answer }) {
  if (status === "complete" && refusal && !text) return <span class="badge warning">Refused by the model</span>;
  if (status === "complete" && finishReason === "length") return <span class="badge warning">Cut off at the maximum tokens</span>;
  if (status === "complete" && finishReason === "content_filter") return <span class="badge warning">Cut off by the content filter</span>;
  const [tone, label] = BADGES[status];
  return <span class={`badge ${tone}`}>{label}</span>;
}

function Metrics({ answer, isCostUnread }: { answer: Answer; isCostUnread: boolean }) {
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
      <div><dt>Cost</dt><dd>{isCostUnread ? "not read" : answer.status === "streaming" || isPending ? "…" : formatUsd(answer.costUsd)}</dd></div>
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
