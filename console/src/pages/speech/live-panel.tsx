/** The live transcript of the microphone. */
import { useEffect, useRef, useState } from "preact/hooks";
import { BusyButton } from "../../components/busy-button";
import { CopyButton } from "../../components/copy";
import { LiveTranscription, type Transcript } from "./live-transcription";
import { Microphone, MicrophoneError } from "./microphone";

type State = "idle" | "starting" | "listening" | "finishing";
const NOTHING: Transcript = { stable: "", unstable: "" };

/** The panels share one microphone. */
export interface MicrophoneUse {
  /** Another panel uses it. */
  isTaken: boolean;
  onChange: (isOn: boolean) => void;
}

export function LivePanel(
  { models, languages, microphone: { isTaken, onChange }, onFinal }: {
    models: string[]; languages: Record<string, string[]>; microphone: MicrophoneUse; onFinal?: (text: string) => void;
  },
) {
  const [model, setModel] = useState(models[0] ?? "");
  const [language, setLanguage] = useState("");
  const [state, setState] = useState<State>("idle");
  const [finals, setFinals] = useState<string[]>([]);
  const [transcript, setTranscript] = useState<Transcript>(NOTHING);
  const latest = useRef(NOTHING);
  const show = (next: Transcript): void => {
    latest.current = next;
    setTranscript(next);
  };
  const [level, setLevel] = useState(0);
  const [error, setError] = useState("");
  const microphone = useRef<Microphone | null>(null);
  const live = useRef<LiveTranscription | null>(null);

  const stopMicrophone = async (): Promise<void> => {
    const current = microphone.current;
    microphone.current = null;
    setLevel(0);
    await current?.stop();
  };
  const isOn = state !== "idle";
  useEffect(() => {
    if (!isOn) return undefined;
    onChange(true);
    return () => onChange(false);
  }, [isOn, onChange]);
  const isGone = useRef(false);
  useEffect(() => () => {
    isGone.current = true;
    live.current?.finish();
    void microphone.current?.stop();
  }, []);

  const start = async (): Promise<void> => {
    setState("starting");
    setError("");
    show(NOTHING);
    try {
      microphone.current = await Microphone.start(({ pcm, peak }) => {
        setLevel(peak);
        live.current?.sendAudio(pcm);
      }, (message) => {
        setError(message);
        stop();
      });
    } catch (caught) {
      setError(caught instanceof MicrophoneError ? caught.message : "The microphone could not be started.");
      setState("idle");
      return;
    }
    if (isGone.current) { // the page was left while the browser asked for permission
      await stopMicrophone();
      return;
    }
    live.current = new LiveTranscription(model, language, {
      onTranscript: show,
      onFinal: (text) => {
        show(NOTHING);
        if (text) {
          setFinals((previous) => [...previous, text]);
          onFinal?.(text);
        }
      },
      onError: setError,
      onClose: () => {
        live.current = null;
        void stopMicrophone();
        // The text of a recording that was cut off is never complete, and the next recording must not remove it.
        const rest = latest.current.stable + latest.current.unstable;
        if (rest) setFinals((previous) => [...previous, rest]);
        show(NOTHING);
        setState("idle");
      },
    });
    setState("listening");
  };
  const stop = (): void => {
    setState("finishing");
    void stopMicrophone();
    live.current?.finish();
  };

  const known = languages[model];
  return (
    <div class="stack">
      <div class="row end">
        <label class="field">
          Model
          <select
            value={model} disabled={state !== "idle"}
            onChange={(event) => { setModel(event.currentTarget.value); setLanguage(""); }}
          >
            {models.map((name) => <option key={name}>{name}</option>)}
          </select>
        </label>
        <label class="field">
          Language
          {known ? (
            <select value={language || (known.length === 1 ? known[0] : "")} disabled={state !== "idle"} onChange={(event) => setLanguage(event.currentTarget.value)}>
              {known.length > 1 && <option value="">Automatic</option>}
              {known.map((code) => <option key={code} value={code}>{languageName(code)}</option>)}
            </select>
          ) : (
            <input
              class="language" placeholder="automatic" maxLength={16} value={language} disabled={state !== "idle"}
              onInput={(event) => setLanguage(event.currentTarget.value)}
            />
          )}
        </label>
        {state === "idle" || state === "starting" ? (
          <BusyButton type="button" class="primary" disabled={isTaken} isBusy={state === "starting"} onClick={() => void start()}>
            {finals.length ? "Record again" : "Start the microphone"}
          </BusyButton>
        ) : (
          <BusyButton type="button" class="primary" isBusy={state === "finishing"} onClick={stop}>
            {state === "finishing" ? "Finishing…" : "Stop"}
          </BusyButton>
        )}
        <label class="field level">
          Level
          <meter min={0} max={1} low={0.02} value={level}>{Math.round(level * 100)} %</meter>
        </label>
      </div>
      {error && <div class="notice error" role="alert"><p>{error}</p></div>}
      <div class="transcript card" role="log" aria-label="Transcript">
        {finals.map((text, index) => <p key={index}>{text}</p>)}
        {(transcript.stable || transcript.unstable) && (
          <p>
            <span class="stable">{transcript.stable}</span>
            <span class="unstable" title="This text can still change">{transcript.unstable}</span>
          </p>
        )}
        {!finals.length && !transcript.stable && !transcript.unstable && (
          <p class="hint">
            {state === "listening" ? "Speak. Text that can still change is grey and in italics." : "The transcript appears here."}
          </p>
        )}
      </div>
      {finals.length > 0 && state === "idle" && (
        <div class="row">
          <CopyButton text={finals.join("\n")} />
          <button type="button" onClick={() => setFinals([])}>Clear</button>
        </div>
      )}
    </div>
  );
}

/** Returns the name of a language in the browser's language, such as `English` for `en`. */
function languageName(code: string): string {
  try {
    return new Intl.DisplayNames(undefined, { type: "language" }).of(code) ?? code;
  } catch {
    return code; // not a language tag
  }
}
