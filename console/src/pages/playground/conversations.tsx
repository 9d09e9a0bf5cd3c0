/** The conversations that this browser keeps: open, rename, delete. */
import { useEffect, useRef, useState } from "preact/hooks";
import { Dialog } from "../../components/dialog";
import { formatTime } from "../../components/format";
import { EmptyNotice } from "../../components/notices";
import type { Chat } from "./use-chat";
import { type Conversation, columnLabel } from "./types";

export function ConversationsDialog({ chat, onClose }: { chat: Chat; onClose: () => void }) {
  return (
    <Dialog title="Conversations" onClose={onClose}>
      <p class="hint">Only this browser keeps them: the latest 50.</p>
      {chat.conversations.length === 0 && <EmptyNotice title="No conversation yet" />}
      <ul class="conversations">
        {chat.conversations.map((conversation) => (
          <ConversationRow
            key={conversation.id} conversation={conversation} isCurrent={conversation.id === chat.conversation.id}
            onOpen={() => { chat.open(conversation); onClose(); }}
            onRename={(title) => chat.rename(conversation.id, title)}
            onRemove={() => chat.remove(conversation.id)}
          />
        ))}
      </ul>
    </Dialog>
  );
}

function ConversationRow(
  { conversation, isCurrent, onOpen, onRename, onRemove }: {
    conversation: Conversation; isCurrent: boolean; onOpen: () => void; onRename: (title: string) => void;
    onRemove: () => void;
  },
) {
  const [mode, setMode] = useState<"show" | "rename" | "remove">("show");
  const [title, setTitle] = useState(conversation.title);
  const name = conversation.title || "Untitled";
  const open = useRef<HTMLButtonElement>(null);
  const wasRename = useRef(false);
  useEffect(() => {
    if (mode === "show" && wasRename.current) open.current?.focus();
    wasRename.current = mode === "rename";
  }, [mode]);
  if (mode === "rename") {
    return (
      <li>
        <form
          class="row"
          onSubmit={(event) => { event.preventDefault(); onRename(title.trim() || name); setMode("show"); }}
        >
          <input
            aria-label={`New title of ${name}`} value={title} maxLength={100} class="grow"
            ref={(input) => input?.focus()} onInput={(event) => setTitle(event.currentTarget.value)}
          />
          <button type="submit" class="primary">Save</button>
          <button type="button" onClick={() => setMode("show")}>Cancel</button>
        </form>
      </li>
    );
  }
  return (
    <li class="row">
      <button ref={open} type="button" class="quiet conversation-title grow" aria-current={isCurrent} onClick={onOpen}>
        <span>{name}</span>
        <span class="hint">{formatTime(new Date(conversation.updated).toISOString())} · {conversation.models.map(columnLabel).join(", ")}</span>
      </button>
      {mode === "remove"
        ? (
          <>
            <button
              type="button" class="danger"
              onClick={(event) => {
                event.currentTarget.closest("dialog")?.querySelector("button")?.focus(); // this button goes away
                onRemove();
              }}
            >
              Delete for good
            </button>
            <button type="button" onClick={() => setMode("show")}>Cancel</button>
          </>
        )
        : (
          <>
            <button type="button" class="quiet" aria-label={`Rename ${name}`} onClick={() => setMode("rename")}>Rename</button>
            <button type="button" class="quiet" aria-label={`Delete ${name}`} onClick={() => setMode("remove")}>Delete</button>
          </>
        )}
    </li>
  );
}
