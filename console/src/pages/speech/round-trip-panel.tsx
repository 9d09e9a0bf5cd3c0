/** Speak, have a model answer, and hear the answer. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, requestJson } from "../../api/client";
import { ErrorNotice } from "../../components/notices";
import { LivePanel, type MicrophoneUse } from "./live-panel";
import type { SpeechChoices } from "./models";
import { synthesize } from "./synthesis";

interface ChatResponse {
  choices: { message: { content: string | null } }[];
}

export function RoundTripPanel({ choices, microphone }: { choices: SpeechChoices; microphone: MicrophoneUse }) {
  const [model, setModel] = useState(choices.chat[0] ?? "");
  const [voice, setVoice] = useState(choices.voices[0] ?? "");
  const [answer, setAnswer] = useState("");
  const [step, setStep] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const [address, setAddress] = useState("");
  const controller = useRef<AbortController | null>(null);
  const player = useRef<HTMLAudioElement>(null);

  useEffect(() => () => controller.current?.abort(), []);
  useEffect(() => () => URL.revokeObjectURL(address), [address]);
  useEffect(() => {
    if (address) void player.current?.play().catch(() => undefined);
  }, [address]);

  const respond = async (question: string): Promise<void> => {
    controller.current?.abort();
    const current = new AbortController();
    controller.current = current;
    setError(null);
    setAnswer("");
    setStep(`${model} is answering…`);
    try {
      const messages = [
        { role: "system", content: "Answer in one or two short sentences that can be spoken." },
        { role: "user", content: question },
      ];
      const response = await requestJson<ChatResponse>("/v1/chat/completions", {
        method: "POST", json: { model, messages, max_tokens: 120 }, signal: current.signal, timeoutSeconds: Infinity,
      });
      const text = response.choices[0]?.message.content ?? "";
      setAnswer(text);
      if (text) {
        setStep(`${voice} is speaking…`);
        setAddress(URL.createObjectURL(await synthesize(voice, text, "alloy", current.signal)));
      }
    } catch (caught) {
      if (caught instanceof ApiError) setError(caught);
      else if (!current.signal.aborted) throw caught;
    }
    if (controller.current === current) setStep("");
  };
  return (
    <div class="stack">
      <div class="row end">
        <label class="field">
          Answering model
          <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
            {choices.chat.map((name) => <option key={name}>{name}</option>)}
          </select>
        </label>
        <label class="field">
          Speaking voice
          <select value={voice} onChange={(event) => setVoice(event.currentTarget.value)}>
            {choices.voices.map((name) => <option key={name}>{name}</option>)}
          </select>
        </label>
      </div>
      <LivePanel
        models={choices.transcription} languages={choices.languages} microphone={microphone}
        onFinal={(text) => void respond(text)}
      />
      {step && <p role="status">{step}</p>}
      {error && <ErrorNotice error={error} />}
      {answer && <div class="card" role="region" aria-label="Answer"><p class="transcript-text">{answer}</p></div>}
      {address && <audio ref={player} controls src={address} aria-label="Spoken answer" />}
    </div>
  );
}
