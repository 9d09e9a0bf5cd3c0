/** The input of a run: a text, a file, or the microphone. */
import { useEffect, useRef, useState } from "preact/hooks";
import { BusyButton } from "../../components/busy-button";
import { DropZone } from "../../components/drop-zone";
import { formatBytes } from "../../components/format";
import { Microphone, MicrophoneError, SAMPLE_RATE } from "../speech/microphone";
import { AudioProblem, MAX_WAV_BYTES, encodeWav, readAudioFile, toBase64 } from "./wav";

const BYTES_PER_SECOND = 2 * SAMPLE_RATE;

type Source = "text" | "file" | "microphone";
const SOURCES: Record<Source, string> = { text: "Text", file: "Audio file", microphone: "Microphone" };
type RunInput = { text: string } | { audio: string };

export function InputPanel(
  { isRunning, declaredKind, onRun, onStop }: {
    isRunning: boolean; declaredKind: string | null; onRun: (input: RunInput) => void; onStop: () => void;
  },
) {
  const [chosen, setChosen] = useState<Source | null>(null);
  const [text, setText] = useState("");
  const [file, setFile] = useState<File | null>(null);
  const [recording, setRecording] = useState<Blob | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const source = chosen ?? (declaredKind === "audio" ? "file" : "text");
  const isReady = source === "text" ? text.trim() !== "" : source === "file" ? file !== null : recording !== null;

  const run = async (): Promise<void> => {
    setProblem(null);
    if (source === "text") {
      onRun({ text });
      return;
    }
    try {
      const audio = source === "file" && file ? await readAudioFile(file) : await recording?.arrayBuffer();
      if (audio) onRun({ audio: toBase64(audio) });
    } catch (error) {
      if (!(error instanceof AudioProblem)) throw error;
      setProblem(error.message);
    }
  };
  return (
    <form class="card stack" onSubmit={(event) => { event.preventDefault(); void run(); }}>
      <fieldset class="row source-choice">
        <legend>Input</legend>
        {(Object.keys(SOURCES) as Source[]).map((each) => (
          <label key={each} class="row checkbox">
            <input
              type="radio" name="source" checked={source === each}
              onChange={() => { setChosen(each); setProblem(null); }}
            />
            {SOURCES[each]}
          </label>
        ))}
      </fieldset>
      {source === "text" && (
        <label class="field">
          Text
          <textarea
            rows={3} value={text} placeholder="What is the capital of France?"
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
      )}
      {source === "file" && (
        <DropZone label="Audio input" accept="audio/*" onFile={(next) => { setFile(next); setProblem(null); }}>
          <p>{file ? <>{file.name} ({formatBytes(file.size)})</> : "Drop an audio file here"}</p>
        </DropZone>
      )}
      {source === "microphone" && <Recorder recording={recording} onRecorded={setRecording} onProblem={setProblem} />}
      {problem && <div class="notice error" role="alert"><p>{problem}</p></div>}
      <div class="row">
        <BusyButton type="submit" class="primary" disabled={!isReady} isBusy={isRunning}>{isRunning ? "Running…" : "Run"}</BusyButton>
        {isRunning && <button type="button" onClick={onStop}>Stop</button>}
      </div>
    </form>
  );
}

function Recorder(
  { recording, onRecorded, onProblem }: {
    recording: Blob | null; onRecorded: (recording: Blob | null) => void; onProblem: (problem: string | null) => void;
  },
) {
  const [state, setState] = useState<"idle" | "starting" | "recording">("idle");
  const microphone = useRef<Microphone | null>(null);
  const frames = useRef<ArrayBuffer[]>([]);
  const [seconds, setSeconds] = useState(0);
  const isGone = useRef(false);
  const url = useObjectUrl(recording);
  const isRecording = state === "recording";
  useEffect(() => () => {
    isGone.current = true;
    void microphone.current?.stop();
  }, []);

  const start = async (): Promise<void> => {
    onProblem(null);
    onRecorded(null);
    frames.current = [];
    setSeconds(0);
    setState("starting");
    try {
      microphone.current = await Microphone.start(({ pcm }) => {
        frames.current.push(pcm);
        setSeconds(Math.floor((frames.current.length * pcm.byteLength) / BYTES_PER_SECOND));
        if (frames.current.length * pcm.byteLength >= MAX_WAV_BYTES) void stop();
      }, (message) => {
        onProblem(message);
        void stop();
      });
    } catch (error) {
      if (!(error instanceof MicrophoneError)) throw error;
      onProblem(error.message);
      setState("idle");
      return;
    }
    if (isGone.current) await microphone.current.stop(); // the page was left while the browser asked for permission
    setState("recording");
  };
  const stop = async (): Promise<void> => {
    const current = microphone.current;
    if (!current) return;
    microphone.current = null;
    await current.stop();
    setState("idle");
    onRecorded(new Blob([encodeWav(frames.current, SAMPLE_RATE)], { type: "audio/wav" }));
  };
  return (
    <div class="row">
      <BusyButton type="button" isBusy={state === "starting"} onClick={() => void (isRecording ? stop() : start())}>
        {isRecording ? "Stop recording" : recording ? "Record again" : "Record"}
      </BusyButton>
      {isRecording && <span role="status" class="recording">Recording…</span>}
      {isRecording && <span role="timer">{seconds} s</span>}
      {url && <audio controls src={url} aria-label="Recording" />}
    </div>
  );
}

/** Returns an address of the blob, which is released with it. */
export function useObjectUrl(blob: Blob | null): string | null {
  const [url, setUrl] = useState<string | null>(null);
  useEffect(() => {
    if (!blob) {
      setUrl(null);
      return undefined;
    }
    const created = URL.createObjectURL(blob);
    setUrl(created);
    return () => URL.revokeObjectURL(created);
  }, [blob]);
  return url;
}
