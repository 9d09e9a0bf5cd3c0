/** Runs a pipeline and follows its events. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, request } from "../../api/client";
import { readEvents } from "../../api/events";
import { fromBase64 } from "./wav";

export interface StageState {
  id: string;
  status: "waiting" | "running" | "finished" | "failed";
  route: string | null;
  model: string | null;
  ms: number | null;
  text: string;
  audio: Blob | null;
  /** How the language model of the stage ended, once the run has ended. */
  finishReason: string | null;
}

export interface RunState {
  stages: StageState[];
  /** The text or audio of the last stage, once the run is complete. */
  output: { text: string } | { audio: Blob } | null;
  failure: { stage: string | null; code: string; message: string } | null;
  error: ApiError | null;
  isStopped: boolean;
}

interface RunEvent {
  type: string;
  stages?: string[];
  stage?: string;
  route?: string;
  model?: string;
  text?: string;
  ms?: number;
  output?: { kind: string; text?: string | null } | null;
  audio?: string | null;
  result?: {
    output: { kind: string; text?: string | null } | null; error: RunState["failure"];
    stages: { id: string; finish_reason?: string }[];
  };
  error?: { code: string; message: string };
}

const INITIAL: RunState = { stages: [], output: null, failure: null, error: null, isStopped: false };

export function usePipelineRun() {
  const [state, setState] = useState<RunState | null>(null);
  const [isRunning, setIsRunning] = useState(false);
  const controller = useRef<AbortController | null>(null);
  useEffect(() => () => controller.current?.abort(), []);

  const start = async (yaml: string, input: { text: string } | { audio: string }): Promise<void> => {
    const current = new AbortController();
    controller.current = current;
    setIsRunning(true);
    let latest = INITIAL;
    const show = (next: RunState): void => {
      latest = next;
      setState(next);
    };
    show(INITIAL);
    try {
      const response = await request("/v1/admin/pipelines/run", {
        method: "POST", json: { yaml, input }, signal: current.signal,
      });
      for await (const { data } of readEvents(response)) show(applyEvent(latest, JSON.parse(data) as RunEvent));
      if (!latest.output && !latest.failure) throw lostConnection();
    } catch (caught) {
      if (current.signal.aborted) show({ ...latest, isStopped: true });
      else show({ ...latest, error: caught instanceof ApiError ? caught : lostConnection() });
    }
    setIsRunning(false);
  };
  return { state, isRunning, start, stop: () => controller.current?.abort() };
}

function lostConnection(): ApiError {
  return new ApiError("The connection to the gateway was lost during the run. Run it again.", 0, "connection_error", null, null, null);
}

function applyEvent(state: RunState, event: RunEvent): RunState {
  const change = (fields: Partial<StageState>): RunState => ({
    ...state,
    stages: state.stages.map((stage) => (stage.id === event.stage ? { ...stage, ...fields } : stage)),
  });
  switch (event.type) {
    case "run.started":
      return {
        ...state,
        stages: (event.stages ?? []).map((id) => (
          { id, status: "waiting", route: null, model: null, ms: null, text: "", audio: null, finishReason: null }
        )),
      };
    case "stage.started":
      return change({ status: "running", route: event.route ?? null, model: event.model ?? null });
    case "stage.delta": {
      const text = state.stages.find((stage) => stage.id === event.stage)?.text ?? "";
      return change({ text: text + (event.text ?? "") });
    }
    case "stage.finished":
    case "stage.failed":
      return change({
        status: event.type === "stage.finished" ? "finished" : "failed",
        ms: event.ms ?? null,
        ...(event.output?.text != null && { text: event.output.text }),
        audio: event.audio ? fromBase64(event.audio) : null,
      });
    case "run.completed":
      return {
        ...state,
        stages: state.stages.map((stage) => (
          { ...stage, finishReason: event.result?.stages.find(({ id }) => id === stage.id)?.finish_reason ?? null }
        )),
        output: finalOutput(state, event),
        failure: event.result?.error ?? null,
      };
    case "error":
      return { ...state, failure: { stage: null, code: event.error?.code ?? "unknown", message: event.error?.message ?? "The run failed." } };
    default:
      return state;
  }
}

function finalOutput(state: RunState, event: RunEvent): RunState["output"] {
  const output = event.result?.output;
  if (!output) return null;
  const audio = state.stages[state.stages.length - 1]?.audio;
  return audio ? { audio } : { text: output.text ?? "" };
}
