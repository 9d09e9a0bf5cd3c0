/** Speech from text with an installed voice or a provider's model. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../../api/client";
import { BusyButton } from "../../components/busy-button";
import { Field, type FieldProblems, focusFirstInvalid } from "../../components/field";
import { formatCount } from "../../components/format";
import { ErrorNotice } from "../../components/notices";
import { synthesize } from "./synthesis";

const DEFAULT_VOICE = "alloy";
const MAX_CHARACTERS = 4096;

export function SpeakPanel({ voices }: { voices: string[] }) {
  const [model, setModel] = useState(voices[0] ?? "");
  const [voice, setVoice] = useState(DEFAULT_VOICE);
  const [text, setText] = useState("Good morning. This is the voice of your gateway.");
  const [error, setError] = useState<ApiError | null>(null);
  const [controller, setController] = useState<AbortController | null>(null);
  const [address, setAddress] = useState("");
  const latest = useRef<AbortController | null>(null);
  const form = useRef<HTMLFormElement>(null);
  const player = useRef<HTMLAudioElement>(null);

  useEffect(() => () => latest.current?.abort(), []);
  useEffect(() => () => URL.revokeObjectURL(address), [address]);
  useEffect(() => {
    if (address) void player.current?.play().catch(() => undefined); // the user presses play if autoplay is blocked
  }, [address]);

  const length = Array.from(text).length; // as the gateway counts
  const problems: FieldProblems = length <= MAX_CHARACTERS ? {} : {
    input: `The text has ${formatCount(length)} characters. The most is ${formatCount(MAX_CHARACTERS)}.`,
  };
  const speak = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (problems["input"]) {
      focusFirstInvalid(form.current);
      return;
    }
    const current = new AbortController();
    latest.current = current;
    setController(current);
    setError(null);
    try {
      setAddress(URL.createObjectURL(await synthesize(model, text, voice, current.signal)));
    } catch (caught) {
      if (caught instanceof ApiError) setError(caught);
      else if (!current.signal.aborted) throw caught;
    }
    setController(null);
  };
  return (
    <form ref={form} class="stack" onSubmit={speak}>
      <div class="row end">
        <label class="field">
          Model
          <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
            {voices.map((name) => <option key={name}>{name}</option>)}
          </select>
        </label>
        <label class="field">
          Voice
          <input value={voice} maxLength={64} required onInput={(event) => setVoice(event.currentTarget.value)} />
        </label>
      </div>
      <Field name="input" label="Text" problems={problems}>
        {(attributes) => (
          <textarea
            {...attributes} rows={3} required value={text} onInput={(event) => setText(event.currentTarget.value)}
          />
        )}
      </Field>
      <div class="row">
        <BusyButton type="submit" class="primary" isBusy={controller !== null}>
          {controller ? "Speaking…" : "Speak"}
        </BusyButton>
        {controller && <button type="button" onClick={() => controller.abort()}>Cancel</button>}
      </div>
      {error && <ErrorNotice error={error} />}
      {address && <audio ref={player} controls src={address} aria-label="Spoken text" />}
    </form>
  );
}
