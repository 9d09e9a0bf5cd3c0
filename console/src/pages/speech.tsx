/** The page Speech: live transcript, files, speech from text, and a spoken conversation. */
import { useCallback, useRef, useState } from "preact/hooks";
import { useData } from "../components/data";
import { EmptyNotice, ErrorNotice, Loading } from "../components/notices";
import { Tabs } from "../components/tabs";
import "../styles/speech.css";
import { FilePanel } from "./speech/file-panel";
import { LivePanel } from "./speech/live-panel";
import { type SpeechChoices, loadSpeechChoices } from "./speech/models";
import { RoundTripPanel } from "./speech/round-trip-panel";
import { SpeakPanel } from "./speech/speak-panel";

const PANELS = ["Live", "File", "Speak", "Conversation"] as const;
type PanelName = (typeof PANELS)[number];

export default function SpeechPage() {
  const { data: choices, error, reload } = useData(loadSpeechChoices, []);
  if (error && !choices) return <ErrorNotice error={error} onRetry={reload} />;
  if (!choices) return <Loading />;
  return (
    <Tabs
      label="Speech" parameter="view"
      tabs={PANELS.map((name) => ({ name, content: <Panels selected={name} choices={choices} /> }))}
    />
  );
}

/** The panels that were opened. The others stay hidden beside the selected one, with their texts and their microphone. */
function Panels({ selected, choices }: { selected: PanelName; choices: SpeechChoices }) {
  const opened = useRef(new Set<PanelName>());
  opened.current.add(selected);
  const [listening, setListening] = useState<PanelName | null>(null);
  const elsewhere = listening !== null && listening !== selected;
  return (
    <>
      {elsewhere && <p class="notice" role="status">The microphone is on in {listening}.</p>}
      {PANELS.filter((name) => opened.current.has(name)).map((name) => (
        <div key={name} hidden={name !== selected}>
          <Panel name={name} choices={choices} listening={listening} onListening={setListening} />
        </div>
      ))}
    </>
  );
}

function Panel(
  { name, choices, listening, onListening }: {
    name: PanelName; choices: SpeechChoices; listening: PanelName | null; onListening: (name: PanelName | null) => void;
  },
) {
  const onMicrophone = useCallback((isOn: boolean) => onListening(isOn ? name : null), [name, onListening]);
  const microphone = { isTaken: listening !== null && listening !== name, onChange: onMicrophone };
  const hasTranscription = choices.transcription.length > 0;
  if (name !== "Speak" && !hasTranscription) {
    return (
      <EmptyNotice title="There is no speech model">
        <p>Install one on the gateway's machine: <code>svc models add moonshine-tiny-en</code></p>
      </EmptyNotice>
    );
  }
  if ((name === "Speak" || name === "Conversation") && !choices.voices.length) {
    return (
      <EmptyNotice title="There is no voice">
        <p>Install one on the gateway's machine: <code>svc models add espeak-en-us</code></p>
      </EmptyNotice>
    );
  }
  if (name === "Live") {
    return <LivePanel models={choices.transcription} languages={choices.languages} microphone={microphone} />;
  }
  if (name === "File") return <FilePanel models={choices.transcription} />;
  if (name === "Speak") return <SpeakPanel voices={choices.voices} />;
  return <RoundTripPanel choices={choices} microphone={microphone} />;
}
