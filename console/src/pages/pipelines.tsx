/** The page Pipelines: write a definition, check it, run it, and see each stage. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { PipelineCheck, PipelineExample, PipelineExampleList, PipelineProblem } from "../../build/schema";
import { ApiError, requestJson } from "../api/client";
import { BusyButton } from "../components/busy-button";
import { useData } from "../components/data";
import { ConfirmDialog } from "../components/dialog";
import { AdminOnly, ErrorNotice, Loading } from "../components/notices";
import { useIsAdmin } from "../session";
import { Editor, selectLine } from "./pipelines/editor";
import { InputPanel } from "./pipelines/input-panel";
import { Plan } from "./pipelines/plan";
import { Problems } from "./pipelines/problems";
import { RunView } from "./pipelines/run-view";
import { usePipelineRun } from "./pipelines/use-run";
import "./pipelines/pipelines.css";

const DRAFT_KEY = "svc.pipeline";

export default function PipelinesPage() {
  return useIsAdmin() ? <Workbench /> : <AdminOnly what="Running pipelines on the gateway is for administrators." />;
}

function Workbench() {
  const examples = useData(
    (signal) => requestJson<PipelineExampleList>("/v1/admin/pipelines/examples", { signal }), [],
  );
  // Loads that follow, after a login, leave the input and a run as they are.
  if (!examples.data) {
    return examples.error
      ? <ErrorNotice error={examples.error} onRetry={examples.reload} /> : <Loading label="Loading examples…" />;
  }
  return <PipelineEditor examples={examples.data.data} />;
}

function PipelineEditor({ examples }: { examples: PipelineExample[] }) {
  const [yaml, setYaml] = useState(() => sessionStorage.getItem(DRAFT_KEY) ?? examples[0]?.yaml ?? "");
  const [checked, setChecked] = useState<PipelineCheck | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [isChecking, setIsChecking] = useState(false);
  const [replacement, setReplacement] = useState<PipelineExample | null>(null);
  const run = usePipelineRun();
  const editor = useRef<HTMLTextAreaElement>(null);
  useEffect(() => sessionStorage.setItem(DRAFT_KEY, yaml), [yaml]);

  const edit = (text: string): void => {
    setYaml(text);
    setChecked(null);
    setError(null);
  };
  const open = (example: PipelineExample): void => {
    const isUntouched = !yaml.trim() || examples.some((each) => each.yaml === yaml);
    if (isUntouched) edit(example.yaml);
    else setReplacement(example);
  };
  const check = async (): Promise<PipelineCheck | null> => {
    setIsChecking(true);
    setError(null);
    try {
      const result = await requestJson<PipelineCheck>("/v1/admin/pipelines/check", { method: "POST", json: { yaml } });
      setChecked(result);
      return result;
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      setError(caught);
      return null;
    } finally {
      setIsChecking(false);
    }
  };
  const start = async (input: { text: string } | { audio: string }): Promise<void> => {
    if ((await check())?.valid) await run.start(yaml, input);
  };
  const goTo = (problem: PipelineProblem): void => {
    if (editor.current && problem.line != null) selectLine(editor.current, problem.line, problem.column ?? 1);
  };

  return (
    <div class="pipeline-columns">
      <section class="stack" aria-labelledby="definition-title">
        <div class="toolbar">
          <h2 id="definition-title">Definition</h2>
          <span class="spacer" />
          <div class="row" role="group" aria-label="Examples">
            <span class="hint" aria-hidden="true">Examples</span>
            {examples.map((example) => (
              <button key={example.name} type="button" title={example.description} onClick={() => open(example)}>
                {example.name}
              </button>
            ))}
          </div>
        </div>
        <Editor
          inputRef={editor} value={yaml} onChange={edit}
          errorLines={checked?.problems.flatMap((problem) => problem.line ?? []) ?? []}
        />
        <div class="row">
          <BusyButton type="button" isBusy={isChecking} onClick={() => void check()}>
            {isChecking ? "Checking…" : "Check"}
          </BusyButton>
        </div>
        {error && <ErrorNotice error={error} />}
        {checked && !checked.valid && <Problems problems={checked.problems} onSelect={goTo} />}
        {checked?.valid && <Plan check={checked} />}
      </section>
      <section class="stack" aria-labelledby="run-title">
        <h2 id="run-title">Run</h2>
        <InputPanel
          isRunning={run.isRunning || isChecking} declaredKind={checked?.input ?? declaredInput(yaml)}
          onRun={(input) => void start(input)} onStop={run.stop}
        />
        <RunView state={run.state} isRunning={run.isRunning} />
      </section>
      {replacement && (
        <ConfirmDialog
          title="Replace your definition?" action="Replace" onClose={() => setReplacement(null)}
          onConfirm={() => { edit(replacement.yaml); setReplacement(null); }}
        >
          <p>The example <strong>{replacement.name}</strong> takes the place of what you wrote.</p>
        </ConfirmDialog>
      )}
    </div>
  );
}

/** Guesses the kind before a check, so that the right input is offered. */
function declaredInput(yaml: string): string | null {
  const kind = /kind:\s*(\w+)/.exec(yaml)?.[1]?.toLowerCase();
  return kind === undefined ? null : kind.startsWith("audio") ? "audio" : kind;
}
