/** The page Speech: live transcript, files, speech from text, and a spoken conversation. */
import { useData } from "../components/data";
import { EmptyNotice, ErrorNotice, Loading } from "../components/notices";
import { Tabs } from "../components/tabs";
import "../styles/speech.css";
import { FilePanel } from "./speech/file-panel";
import { LivePanel } from "./speech/live-panel";
import { loadSpeechChoices } from "./speech/models";
import { RoundTripPanel } from "./speech/round-trip-panel";
import { SpeakPanel } from "./speech/speak-panel";

export default function SpeechPage() {
  const { data: choices, error, reload } = useData(loadSpeechChoices, []);
  if (error && !choices) return <ErrorNotice error={error} onRetry={reload} />;
  if (!choices) return <Loading />;
  const noTranscription = (
    <EmptyNotice title="There is no speech model">
      <p>Install one on the gateway's machine: <code>svc models add moonshine-tiny-en</code></p>
    </EmptyNotice>
  );
  const noVoice = (
    <EmptyNotice title="There is no voice">
      <p>Install one on the gateway's machine: <code>svc models add espeak-en-us</code></p>
    </EmptyNotice>
  );
  const hasTranscription = choices.transcription.length > 0;
  const hasVoice = choices.voices.length > 0;
  return (
    <Tabs
      label="Speech" parameter="view" tabs={[
        { name: "Live", content: hasTranscription ? <LivePanel models={choices.transcription} languages={choices.languages} /> : noTranscription },
        { name: "File", content: hasTranscription ? <FilePanel models={choices.transcription} /> : noTranscription },
        { name: "Speak", content: hasVoice ? <SpeakPanel voices={choices.voices} /> : noVoice },
        {
          name: "Conversation",
          content: !hasTranscription ? noTranscription : !hasVoice ? noVoice : <RoundTripPanel choices={choices} />,
        },
      ]}
    />
  );
}
