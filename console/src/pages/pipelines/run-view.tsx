/** The stages of a run as they happen, and its result. */
import { CopyButton } from "../../components/copy";
import { formatMilliseconds } from "../../components/format";
import { EmptyNotice, ErrorNotice } from "../../components/notices";
import { useObjectUrl } from "./input-panel";
import { describeRoute } from "./plan";
import type { RunState, StageState } from "./use-run";

export function RunView({ state, isRunning }: { state: RunState | null; isRunning: boolean }) {
  if (!state) {
    return <EmptyNotice title="Nothing has run yet"><p>Give an input and run the pipeline to see each stage here.</p></EmptyNotice>;
  }
  return (
    <div class="stack">
      {isRunning && !state.stages.length && <p class="loading" role="status">Starting…</p>}
      {state.stages.length > 0 && (
        <ol class="item-list" aria-label="Stages">
          {state.stages.map((stage) => <Stage key={stage.id} stage={stage} isRunning={isRunning} />)}
        </ol>
      )}
      {state.error && <ErrorNotice error={state.error} />}
      {state.failure && (
        <div class="notice error" role="alert">
          <p>{state.failure.stage ? `The stage ${state.failure.stage} failed: ` : ""}{state.failure.message}</p>
          <p class="hint">Code {state.failure.code}.</p>
        </div>
      )}
      {state.isStopped && <p role="status">The run was stopped.</p>}
      {state.output && <Result output={state.output} cut={cutOf(state.stages.at(-1))} />}
    </div>
  );
}

const STATUSES = {
  waiting: { text: "Waiting", tone: "" },
  running: { text: "Running", tone: "warning" },
  finished: { text: "Finished", tone: "good" },
  failed: { text: "Failed", tone: "bad" },
};

/** Finish reasons of an output that is incomplete. */
const CUTS: Record<string, string> = {
  length: "Cut off at the maximum tokens",
  content_filter: "Cut off by the content filter",
};

function cutOf(stage: StageState | undefined): string | null {
  return CUTS[stage?.finishReason ?? ""] ?? null;
}

function Stage({ stage, isRunning }: { stage: StageState; isRunning: boolean }) {
  const hasEnded = stage.status === "finished" || stage.status === "failed";
  const cut = stage.status === "finished" ? cutOf(stage) : null;
  const status = cut ? { text: cut, tone: "warning" }
    : isRunning || hasEnded ? STATUSES[stage.status] : { text: "Not finished", tone: "" };
  return (
    <li class="card stage">
      <div class="row">
        <h3 class="stage-name">{stage.id}</h3>
        <span class={`badge ${status.tone}`}>{status.text}</span>
        <span class="spacer" />
        {stage.ms !== null && <span class="stage-time">{formatMilliseconds(stage.ms)}</span>}
      </div>
      {stage.model && <p class="hint"><code>{stage.model}</code> {stage.route && describeRoute(stage.route)}</p>}
      {stage.text && <p class="stage-text">{stage.text}</p>}
      {stage.audio && <Player audio={stage.audio} label={`Audio of ${stage.id}`} />}
    </li>
  );
}

function Result({ output, cut }: { output: NonNullable<RunState["output"]>; cut: string | null }) {
  return (
    <div class="card stack result" role="region" aria-label="Result">
      <h3>Result</h3>
      {cut && <p class="badge warning">{cut}</p>}
      {"text" in output
        ? <><p class="stage-text">{output.text || "The output is empty."}</p><div><CopyButton text={output.text} /></div></>
        : <Player audio={output.audio} label="Result as audio" />}
    </div>
  );
}

function Player({ audio, label }: { audio: Blob; label: string }) {
  const url = useObjectUrl(audio);
  return url ? <audio controls src={url} aria-label={label} /> : null;
}
