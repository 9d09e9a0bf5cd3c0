/** The state of the playground: the open conversation, its running answers, and what the browser keeps. */
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
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

export function useChat(keyId: string, makeFirst: () => Conversation | null, models: Column[]): Chat {
  const store = useMemo(() => new ConversationStore(keyId), [keyId]);
  const [conversation, setConversation] = useState(() => {
    const first = makeFirst() ?? recoverCurrent(store) ?? newConversation(models);
    return first.models.length ? first : { ...first, models };
  });
  const [conversations, setConversations] = useState(() => store.list());
  const [saveResult, setSaveResult] = useState<SaveResult>("saved");
  const latest = useRef(conversation);
  const running = useRef(new Map<string, AbortController>());
  const [runningCount, setRunningCount] = useState(0);
  const saveTimer = useRef(0);

  const isLeaving = useRef(false);

  const save = useCallback(() => {
    if (isLeaving.current) return;
    clearTimeout(saveTimer.current);
    saveTimer.current = 0;
    if (!latest.current.turns.length) return;
    setSaveResult(store.save(latest.current));
    setConversations(store.list());
  }, [store]);

  const update = useCallback((change: (previous: Conversation) => Conversation) => {
    latest.current = change(latest.current);
    setConversation(latest.current);
    saveTimer.current ||= window.setTimeout(save, SAVE_MILLISECONDS);
  }, [save]);

  const stop = useCallback((column?: Column) => {
    for (const [name, controller] of running.current) {
      if (column === undefined || name === column) controller.abort();
    }
  }, []);

  useEffect(() => {
    setCurrentId(latest.current.id);
    const refresh = (): void => setConversations(store.list()); // another tab has changed something
    // The browser ends the running requests of a page that it leaves, which is no loss of a connection.
    const leave = (): void => {
      save();
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
      save();
      running.current.forEach((controller) => controller.abort());
      running.current.clear();
    };
  }, [save, stop, store]);

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
    const conversationId = latest.current.id;
    const onUpdate = (answer: Answer): void => {
      const isCurrent = running.current.get(column) === controller && latest.current.id === conversationId;
      if (isCurrent) updateAnswer(turn.id, column, answer);
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
    save();
    const controllers = [...running.current.values()];
    running.current.clear(); // the last state of an aborted answer belongs to the conversation that is left
    controllers.forEach((controller) => controller.abort());
    setRunningCount(0);
    latest.current = endRunning(next, CLOSED);
    setConversation(latest.current);
    setCurrentId(next.id);
  }, [save]);

  const rename = useCallback((id: string, title: string) => {
    if (id === latest.current.id) {
      update((previous) => ({ ...previous, title }));
      save();
      return;
    }
    const found = store.find(id);
    if (found) store.save({ ...found, title });
    setConversations(store.list());
  }, [save, store, update]);

  const remove = useCallback((id: string) => {
    if (id === latest.current.id) {
      stop();
      running.current.clear();
      setRunningCount(0);
      latest.current = newConversation(latest.current.models, latest.current.settings);
      setConversation(latest.current);
      setCurrentId(latest.current.id);
    }
    store.remove(id);
    setConversations(store.list());
  }, [stop, store]);

  return {
    conversation, conversations, saveResult, isStreaming: runningCount > 0, update, updateAnswer,
    send: (prompt, images) => addTurn(prompt, images, latest.current.models),
    setToolResult: (turnId, key, result) => updateTurn(turnId, (turn) => ({
      ...turn, toolResults: { ...turn.toolResults, [key]: result },
    })),
    sendToolResults,
    regenerate: (columns) => columns.forEach(ask), stop, open, rename, remove,
  };
}

function recoverCurrent(store: ConversationStore): Conversation | null {
  const id = currentId();
  const found = id === null ? null : store.find(id);
  return found && endRunning(found, CLOSED);
}

const CLOSED: AnswerError = {
  message: "The page was closed before the answer was complete.", status: 0, code: "page_closed",
};
const LEFT: AnswerError = {
  message: "You left the conversation before the answer was complete.", status: 0, code: "conversation_left",
};

/** Ends the answers that were running when the page was closed or the conversation was left. They are incomplete. */
function endRunning(conversation: Conversation, error: AnswerError): Conversation {
  return mapAnswers(conversation, (answer) => (answer.status !== "streaming" ? answer : {
    ...answer, status: hasContent(answer) ? "interrupted" : "failed", error,
  }));
}
