/**
 * Keeps conversations in this browser, one entry of `localStorage` each. They are bounded in number and size, belong to
 * the key that is logged in, and stay in memory if the storage is blocked.
 */
import { type Conversation, mapAnswers, newAnswer } from "./types";

const PREFIX = "svc.playground.";
const MAX_CONVERSATIONS = 50;
/** Of about 5 million that a browser gives an address. A larger conversation is kept without its images. */
const MAX_CHARACTERS = 1_500_000;

export type SaveResult = "saved" | "saved without images" | "not saved";

export class ConversationStore {
  /** Conversations that the browser does not keep. */
  private readonly memory = new Map<string, Conversation>();

  constructor(private readonly keyId: string) {}

  /** Returns the conversations, the latest first. */
  list(): Conversation[] {
    const found = new Map<string, Conversation>();
    for (const name of this.names()) {
      const conversation = this.read(name);
      if (conversation) found.set(conversation.id, conversation);
    }
    for (const conversation of this.memory.values()) found.set(conversation.id, conversation);
    return [...found.values()].sort((one, other) => other.updated - one.updated);
  }

  find(id: string): Conversation | null {
    return this.memory.get(id) ?? this.read(this.entryName(id));
  }

  /** Keeps a conversation. The oldest ones make room for it if the storage is full. */
  save(conversation: Conversation): SaveResult {
    const whole = JSON.stringify(conversation);
    const isTooLarge = whole.length > MAX_CHARACTERS;
    const text = isTooLarge ? JSON.stringify(withoutImages(conversation)) : whole;
    if (text.length > MAX_CHARACTERS || !this.write(conversation.id, text)) {
      this.memory.set(conversation.id, conversation);
      return "not saved";
    }
    this.memory.delete(conversation.id);
    for (const old of this.list().slice(MAX_CONVERSATIONS)) this.remove(old.id);
    return isTooLarge ? "saved without images" : "saved";
  }

  remove(id: string): void {
    this.memory.delete(id);
    try {
      localStorage.removeItem(this.entryName(id));
    } catch {
      // A blocked storage holds nothing.
    }
  }

  private write(id: string, text: string): boolean {
    for (;;) {
      try {
        localStorage.setItem(this.entryName(id), text);
        return true;
      } catch {
        const oldest = this.list().findLast((other) => other.id !== id && !this.memory.has(other.id));
        if (!oldest) return false;
        this.remove(oldest.id);
      }
    }
  }

  private read(name: string): Conversation | null {
    try {
      const value = JSON.parse(localStorage.getItem(name) ?? "null") as Partial<Conversation> | null;
      if (!value || !Array.isArray(value.turns) || !Array.isArray(value.models) || !value.settings) return null;
      // An older version of the page stored fewer fields of an answer.
      return mapAnswers(value as Conversation, (answer) => ({ ...newAnswer(), ...answer }));
    } catch {
      return null; // blocked, or not written by this page
    }
  }

  private names(): string[] {
    try {
      return Object.keys(localStorage).filter((name) => name.startsWith(this.entryName("")));
    } catch {
      return [];
    }
  }

  private entryName(id: string): string {
    return `${PREFIX}${this.keyId}.${id}`;
  }
}

function withoutImages(conversation: Conversation): Conversation {
  const kept = { ...conversation, turns: conversation.turns.map((turn) => ({ ...turn, images: [] })) };
  return mapAnswers(kept, (answer) => ({ ...answer, images: answer.images.map(() => "") }));
}

const CURRENT = "svc.playground.current";

/** The conversation of this tab, which a reload opens again. */
export function currentId(): string | null {
  try {
    return sessionStorage.getItem(CURRENT);
  } catch {
    return null;
  }
}

export function setCurrentId(id: string): void {
  try {
    sessionStorage.setItem(CURRENT, id);
  } catch {
    // Without storage, a reload starts a new conversation.
  }
}
