/** Keeps the unsent input of this tab for each key. It survives a change of the page and a reload. */
import type { Conversation } from "./types";

const PREFIX = "svc.playground.draft.";

/** Survives a change of the page also if the storage is blocked, or too small for the images. */
const memory = new Map<string, unknown>();

export class DraftStore {
  constructor(private readonly keyId: string) {}

  get prompt(): string {
    return (this.read("prompt") as string | null) ?? "";
  }

  set prompt(text: string) {
    this.write("prompt", text);
  }

  /** Data URLs. */
  get images(): string[] {
    return (this.read("images") as string[] | null) ?? [];
  }

  set images(urls: string[]) {
    this.write("images", urls);
  }

  /** Returns the conversation with this id, which has no turn yet: its models and settings. */
  findConversation(id: string): Conversation | null {
    const conversation = this.read("conversation") as Conversation | null;
    return conversation?.id === id ? conversation : null;
  }

  saveConversation(conversation: Conversation | null): void {
    this.write("conversation", conversation);
  }

  private write(name: string, value: string | string[] | Conversation | null): void {
    const key = this.entryName(name);
    memory.set(key, value);
    try {
      sessionStorage.removeItem(key); // if the new value has no room, the old one is wrong
      if (value !== null) sessionStorage.setItem(key, JSON.stringify(value));
    } catch {
      // Only the memory has it.
    }
  }

  private read(name: string): unknown {
    const key = this.entryName(name);
    if (memory.has(key)) return memory.get(key);
    try {
      return JSON.parse(sessionStorage.getItem(key) ?? "null") as unknown;
    } catch {
      return null; // blocked
    }
  }

  private entryName(name: string): string {
    return `${PREFIX}${this.keyId}.${name}`;
  }
}
