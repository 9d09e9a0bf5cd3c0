/** The page Playground: one prompt to up to four models, side by side. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useData } from "../components/data";
import { EmptyNotice, ErrorNotice, Loading } from "../components/notices";
import { navigate, pagePath } from "../router";
import { useSession } from "../session";
import "../styles/playground.css";
import { CodeDialog } from "./playground/code-dialog";
import { Composer } from "./playground/composer";
import { ConversationsDialog } from "./playground/conversations";
import { DraftStore } from "./playground/draft";
import { ColumnPicker, loadChatModels } from "./playground/models";
import { type ChatBody, buildRequest, readSettings, validSettings } from "./playground/request";
import { SettingsPanel } from "./playground/settings";
import { addressOfModels, readSharedChat } from "./playground/share";
import { ShareButton } from "./playground/share-button";
import { TurnView } from "./playground/turn";
import { columnLabel, modelOf, newConversation } from "./playground/types";
import { useChat } from "./playground/use-chat";
import { useFollow } from "./playground/use-follow";

/** The state of an address that the page itself has set. A reload has it, and a link does not. */
const OWN_ADDRESS = "playground";

export default function PlaygroundPage() {
  const models = useData(loadChatModels, []);
  // Loads that follow, after a login, leave the page and its running answers as they are.
  if (!models.data) {
    return models.error
      ? <ErrorNotice error={models.error} onRetry={models.reload} /> : <Loading label="Loading the models…" />;
  }
  if (!models.data.length) {
    return (
      <EmptyNotice title="This key may use no model that chats">
        <p>Set the key of a provider, such as <code>OPENAI_API_KEY</code>, and start the gateway again.</p>
      </EmptyNotice>
    );
  }
  return <Playground available={models.data} />;
}

function Playground({ available }: { available: string[] }) {
  const session = useSession();
  const [shared] = useState(() => readSharedChat(new URL(location.href), available, history.state === OWN_ADDRESS));
  const drafts = useMemo(() => {
    const store = new DraftStore(session.key_id);
    if (shared.prompt) store.prompt = shared.prompt;
    return store;
  }, [session.key_id]);
  const [composerNumber, setComposerNumber] = useState(0);
  const chat = useChat(session.key_id, drafts, () => shared.conversation, available.slice(0, 1));
  const [dialog, setDialog] = useState<"conversations" | { body: ChatBody } | null>(null);
  const { conversation } = chat;
  useFollow(conversation, conversation.turns.length, chat.isStreaming);
  const { problems } = useMemo(() => readSettings(conversation.settings), [conversation.settings]);
  const chosen = conversation.models.filter((column) => available.includes(modelOf(column)));
  const missing = [...shared.missing, ...conversation.models.map(modelOf).filter((model) => !available.includes(model))];
  useEffect(() => {
    if (chosen.length !== conversation.models.length) {
      chat.update((previous) => ({ ...previous, models: chosen.length ? chosen : available.slice(0, 1) }));
    }
  }, [conversation.id]);
  useEffect(() => navigate(pagePath("Playground") + addressOfModels(conversation.models), {
    replace: true, state: OWN_ADDRESS,
  }), [conversation.models.join("\n")]);
  const startNew = (): void => {
    drafts.prompt = "";
    drafts.images = [];
    setComposerNumber((previous) => previous + 1);
    chat.open(newConversation(conversation.models, validSettings(conversation.settings)));
  };

  return (
    <div class="playground">
      <div class="row playground-bar">
        <ColumnPicker
          available={available} chosen={chosen} isDisabled={chat.isStreaming}
          onChange={(columns) => chat.update((previous) => ({ ...previous, models: columns }))}
        />
        <div class="row toolbar-actions">
          <ShareButton conversation={conversation} />
          <button type="button" onClick={() => setDialog("conversations")}>Conversations ({chat.conversations.length})</button>
          <button type="button" disabled={!conversation.turns.length} onClick={startNew}>New conversation</button>
        </div>
      </div>
      {missing.length > 0 && (
        <p class="field-error" role="status">{missingText([...new Set(missing)], session.models)}</p>
      )}
      <details class="settings-details">
        <summary>System prompt, parameters and tools{problems.length > 0 && <span class="field-error"> · has an error</span>}</summary>
        <SettingsPanel
          settings={conversation.settings} problems={problems}
          onChange={(settings) => chat.update((previous) => ({ ...previous, settings }))}
        />
      </details>
      <SaveNotice result={chat.saveResult} />
      {chat.isCopy && (
        <p class="hint" role="status">
          Another tab has continued this conversation in another way. The turns of this tab are a copy of their own.
        </p>
      )}
      {conversation.turns.length === 0 && (
        <EmptyNotice title="Ask a question">
          <p>Add models to compare their answers, their speed and their cost.</p>
        </EmptyNotice>
      )}
      {conversation.turns.map((turn, index) => (
        <TurnView
          key={turn.id} chat={chat} turn={turn} isLast={index === conversation.turns.length - 1}
          onShowCode={(column) => setDialog({ body: buildRequest(conversation, index, column) })}
        />
      ))}
      <Announcer chat={chat} />
      <Composer
        key={composerNumber} drafts={drafts} isStreaming={chat.isStreaming}
        problem={problems.length ? "Correct the parameters before you send the prompt." : null}
        onSend={chat.send} onStop={() => chat.stop()}
      />
      {dialog === "conversations" && <ConversationsDialog chat={chat} onClose={() => setDialog(null)} />}
      {dialog !== null && dialog !== "conversations" && <CodeDialog body={dialog.body} onClose={() => setDialog(null)} />}
    </div>
  );
}

/** `allowed` is null for a key that may use all models. */
function missingText(models: string[], allowed: string[] | null): string {
  const unknown = models.filter((model) => allowed === null || allowed.includes(model));
  const forbidden = models.filter((model) => !unknown.includes(model));
  return [
    unknown.length > 0 && `This gateway has no model ${unknown.join(", ")}.`,
    forbidden.length > 0 && `This key may not use ${forbidden.join(", ")}.`,
  ].filter(Boolean).join(" ");
}

function SaveNotice({ result }: { result: ReturnType<typeof useChat>["saveResult"] }) {
  if (result === "saved") return null;
  return (
    <p class="hint" role="status">
      {result === "not saved"
        ? "This browser cannot keep the conversation: its storage is full or blocked. It is lost when you close the page."
        : "The conversation is too large to be kept with its images. They are lost when you close the page."}
    </p>
  );
}

/** Tells users of screen readers when an answer begins and how it ends, but not each token. */
function Announcer({ chat }: { chat: ReturnType<typeof useChat> }) {
  const answers = Object.entries(chat.conversation.turns.at(-1)?.answers ?? {});
  const text = answers.map(([column, { status, completionTokens, error, refusal }]) => {
    const model = columnLabel(column);
    if (status === "streaming") return `${model} answers.`;
    if (status === "complete" && refusal) return `${model} has refused: ${refusal}`;
    if (status === "complete") return `${model} has answered${completionTokens === null ? "" : ` with ${completionTokens} tokens`}.`;
    return `The answer of ${model} is incomplete: ${error?.message ?? status}`;
  }).join(" ");
  const isFirst = useRef(true);
  useEffect(() => { isFirst.current = false; }, []);
  return <p class="visually-hidden" role="status">{isFirst.current ? "" : text}</p>;
}
