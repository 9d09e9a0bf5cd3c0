/** The state of the playground: the open conversation, its running answers, and what the browser keeps. */
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { DraftStore } from "./draft";
import { mergeVersions } from "./merge";
import { buildRequest } from "./request";
import { ConversationStore, type SaveResult, currentId, setCurrentId } from "./store";
import { streamAnswer } from "./stream";
import {
  type Answer, type AnswerError, type Column, type Conversation, type Turn, finishedCalls, hasContent, mapAnswers,
  newAnswer, newConversation, newId,
} from "./types";

const SAVE_MILLISECONDS = 500;
const TITLE_CHARACTERS = 60;
/** A page that is still there so long after `beforeunload` stays: the link was a download. */
const LEAVE_MILLISECONDS = 3000;

export interface Chat {
  conversation: Conversation;
  conversations: Conversation[];
  saveResult: SaveResult;
  /** Another tab has continued the conversation in another way, and this one is a copy. */
  isCopy: boolean;
  isStreaming: boolean;
  update: (change: (conversation: Conversation) => Conversation) => void;
  updateAnswer: (turnId: string, column: Column, patch: Partial<Answer>) => void;
  send: (prompt: string, images: string[]) => void;
  setToolResult: (turnId: string, key: string, result: string) => void;
  /** Sends the results of the tools to the models that called them. */
  sendToolResults: () => void;
  /** Asks the models of columns again for their answer to the last turn. */
  regenerate: (columns: Column[]) => void;
  /** Ends the running answer of one column, or of all. */
  stop: (column?: Column) => void;
  open: (conversation: Conversation) => void;
  rename: (id: string, title: string) => void;
  remove: (id: string) => void;
}

export function useChat(
  keyId: string, drafts: DraftStore, makeFirst: () => Conversation | null, models: Column[],
): Chat {
  const store = useMemo(() => new ConversationStore(keyId), [keyId]);
  const [conversation, setConversation] = useState(() => {
    const first = makeFirst() ?? recoverCurrent(store, drafts) ?? newConversation(models);
    return first.models.length ? first : { ...first, models };
  });
  const [conversations, setConversations] = useState(() => store.list());
  const [saveResult, setSaveResult] = useState<SaveResult>("saved");
  const [isCopy, setIsCopy] = useState(false);
  const latest = useRef(conversation);
  /** The version that this tab has last read or saved. */
  const synced = useRef(conversation);
  const running = useRef(new Map<string, AbortController>());
  const [runningCount, setRunningCount] = useState(0);
  const saveTimer = useRef(0);

  const isLeaving = useRef(false);

  /** `isLast` says that the conversation is left, so that the page cannot wait for another tab. */
  const save = useCallback((isLast = false) => {
    if (isLeaving.current) return;
    clearTimeout(saveTimer.current);
    saveTimer.current = 0;
    if (!latest.current.turns.length) {
      drafts.saveConversation(latest.current);
      return;
    }
    drafts.saveConversation(null);
    if (latest.current === synced.current) return;
    const stored = store.find(latest.current.id);
    let next = latest.current;
    if (stored && stored.revision !== synced.current.revision) {
      const merged = mergeVersions(synced.current, next, stored);
      if (merged && !isLast && hasRunning(merged) && !hasRunning(next)) { // an answer runs in the other tab
        saveTimer.current = window.setTimeout(() => save(), SAVE_MILLISECONDS);
        return;
      }
      if (!merged) setIsCopy(true);
      next = merged ?? { ...next, id: newId(), title: `${next.title} (copy)` };
      setCurrentId(next.id);
    }
    next = { ...next, revision: newId() };
    latest.current = synced.current = next;
    setConversation(next);
    setSaveResult(store.save(next));
    setConversations(store.list());
  }, [drafts, store]);

  /** Opens a conversation without the state of the one before it. */
  const show = useCallback((next: Conversation) => {
    latest.current = synced.current = next;
    setConversation(next);
    setIsCopy(false);
    setCurrentId(next.id);
    save(); // the draft
  }, [save]);

  const endAll = useCallback(() => {
    const controllers = [...running.current.values()];
    running.current.clear(); // the last state of an aborted answer belongs to the conversation that is left
    controllers.forEach((controller) => controller.abort());
    setRunningCount(0);
  }, []);

  const update = useCallback((change: (previous: Conversation) => Conversation) => {
    latest.current = change(latest.current);
    setConversation(latest.current);
    saveTimer.current ||= window.setTimeout(() => save(), SAVE_MILLISECONDS);
  }, [save]);

  const stop = useCallback((column?: Column) => {
    for (const [name, controller] of running.current) {
      if (column === undefined || name === column) controller.abort();
    }
  }, []);

  useEffect(() => {
    setCurrentId(latest.current.id);
    const refresh = (): void => { // another tab has changed something
      setConversations(store.list());
      const stored = store.find(latest.current.id);
      const isChangedHere = latest.current !== synced.current || running.current.size > 0;
      if (!stored || stored.revision === synced.current.revision || isChangedHere || hasRunning(stored)) return;
      latest.current = synced.current = stored;
      setConversation(stored);
    };
    // The browser ends the running requests of a page that it leaves, which is no loss of a connection.
    const leave = (): void => {
      save(true);
      isLeaving.current = true;
      setTimeout(stay, LEAVE_MILLISECONDS);
    };
    const stay = (): void => { isLeaving.current = false; };
    window.addEventListener("beforeunload", leave);
    window.addEventListener("pagehide", leave);
    window.addEventListener("pageshow", stay);
    window.addEventListener("storage", refresh);
    return () => {
      window.removeEventListener("beforeunload", leave);
      window.removeEventListener("pagehide", leave);
      window.removeEventListener("pageshow", stay);
      window.removeEventListener("storage", refresh);
      latest.current = endRunning(latest.current, LEFT);
      save(true);
      endAll();
    };
  }, [endAll, save, store]);

  const updateTurn = useCallback((turnId: string, change: (turn: Turn) => Turn) => {
    update((previous) => ({
      ...previous, turns: previous.turns.map((turn) => (turn.id === turnId ? change(turn) : turn)),
    }));
  }, [update]);

  const updateAnswer = useCallback((turnId: string, column: Column, patch: Partial<Answer>) => {
    updateTurn(turnId, (turn) => ({
      ...turn, answers: { ...turn.answers, [column]: { ...(turn.answers[column] ?? newAnswer()), ...patch } },
    }));
  }, [updateTurn]);

  const ask = useCallback((column: Column) => {
    const turnIndex = latest.current.turns.length - 1;
    const turn = latest.current.turns[turnIndex];
    if (!turn) return;
    running.current.get(column)?.abort();
    const controller = new AbortController();
    running.current.set(column, controller);
    setRunningCount(running.current.size);
    const onUpdate = (answer: Answer): void => {
      if (running.current.get(column) === controller) updateAnswer(turn.id, column, answer);
    };
    updateAnswer(turn.id, column, newAnswer());
    void streamAnswer(buildRequest(latest.current, turnIndex, column), controller.signal, onUpdate).then(() => {
      if (running.current.get(column) !== controller) return;
      running.current.delete(column);
      setRunningCount(running.current.size);
      save();
    });
  }, [save, updateAnswer]);

  const addTurn = useCallback((prompt: string, images: string[], columns: Column[]) => {
    const turn: Turn = { id: newId(), prompt, images, answers: {}, toolResults: {} };
    update((previous) => ({
      ...previous,
      title: previous.title || prompt.trim().replace(/\s+/g, " ").slice(0, TITLE_CHARACTERS),
      updated: Date.now(),
      turns: [...previous.turns, turn],
    }));
    columns.forEach(ask);
    save();
  }, [ask, save, update]);

  const sendToolResults = useCallback(() => {
    const answers = Object.entries(latest.current.turns.at(-1)?.answers ?? {});
    addTurn("", [], answers.filter(([, answer]) => finishedCalls(answer).length > 0).map(([column]) => column));
  }, [addTurn]);

  const open = useCallback((next: Conversation) => {
    if (next.id === latest.current.id) return;
    latest.current = endRunning(latest.current, LEFT);
    save(true);
    endAll();
    show(endRunning(next, CLOSED));
  }, [endAll, save, show]);

  const rename = useCallback((id: string, title: string) => {
    if (id === latest.current.id) {
      update((previous) => ({ ...previous, title }));
      save();
      return;
    }
    const found = store.find(id);
    if (found) store.save({ ...found, title, revision: newId() });
    setConversations(store.list());
  }, [save, store, update]);

  const remove = useCallback((id: string) => {
    if (id === latest.current.id) {
      endAll();
      show(newConversation(latest.current.models, latest.current.settings));
    }
    store.remove(id);
    setConversations(store.list());
  }, [endAll, show, store]);

  return {
    conversation, conversations, saveResult, isCopy, isStreaming: runningCount > 0, update, updateAnswer,
    send: (prompt, images) => addTurn(prompt, images, latest.current.models),
    setToolResult: (turnId, key, result) => updateTurn(turnId, (turn) => ({
      ...turn, toolResults: { ...turn.toolResults, [key]: result },
    })),
    sendToolResults,
    regenerate: (columns) => columns.forEach(ask), stop, open, rename, remove,
  };
}

function recoverCurrent(store: ConversationStore, drafts: DraftStore): Conversation | null {
  const id = currentId();
  const found = id === null ? null : store.find(id) ?? drafts.findConversation(id);
  return found && endRunning(found, CLOSED);
}

function hasRunning(conversation: Conversation): boolean {
  return conversation.turns.some(({ answers }) => Object.values(answers).some(({ status }) => status === "streaming"));
}

const CLOSED: AnswerError = {
  message: "The page was closed before the answer was complete.", status: 0, code: "page_closed",
};
const LEFT: AnswerError = {
  message: "You left the conversation before the answer was complete.", status: 0, code: "conversation_left",
};

/** Ends the answers that were running when the page was closed or the conversation was left. They are incomplete. */
function endRunning(conversation: Conversation, error: AnswerError): Conversation {
  if (!hasRunning(conversation)) return conversation;
  return mapAnswers(conversation, (answer) => (answer.status !== "streaming" ? answer : {
    ...answer, status: hasContent(answer) ? "interrupted" : "failed", error,
  }));
}
