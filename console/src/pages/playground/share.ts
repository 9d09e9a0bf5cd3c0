/** Models and prompt in the address, to share them. */
import { type Column, type Conversation, MAX_MODELS, NO_SETTINGS, modelOf, newConversation, toColumns } from "./types";

/** A longer address is cut off by some programs. */
export const MAX_SHARED_CHARACTERS = 4000;

export interface SharedChat {
  /** A new conversation, if the address asks for models or has a prompt. */
  conversation: Conversation | null;
  prompt: string;
  /** Models of the address that the key may not use. */
  missing: string[];
}

/** `isOwn` says that the page has set the address, so that its models are those of the last conversation. */
export function readSharedChat(address: URL, available: string[], isOwn: boolean): SharedChat {
  const asked = address.searchParams.getAll("model").slice(0, MAX_MODELS);
  const prompt = address.searchParams.get("prompt") ?? "";
  const system = address.searchParams.get("system") ?? "";
  const models = asked.filter((model) => available.includes(model));
  const columns = toColumns(models);
  const missing = asked.filter((model) => !available.includes(model));
  if (!prompt && !system && (isOwn || !models.length)) return { conversation: null, prompt, missing };
  return { conversation: newConversation(columns, { ...NO_SETTINGS, system }), prompt, missing };
}

/** Returns the query of an address that opens the playground with these columns. */
export function addressOfModels(columns: Column[]): string {
  const query = new URLSearchParams(columns.map((column) => ["model", modelOf(column)])).toString();
  return query && query.length <= MAX_SHARED_CHARACTERS ? `?${query}` : "";
}

/** Returns the query of an address that opens the playground with these texts, and what has no room in it. */
export function shareConversation({ models, turns, settings }: Conversation): { query: string; omitted: string[] } {
  const texts = [
    { name: "prompt", label: "the prompt", text: turns.at(-1)?.prompt ?? "" },
    { name: "system", label: "the system prompt", text: settings.system },
  ].filter(({ text }) => text !== "");
  let query = addressOfModels(models);
  const omitted: string[] = [];
  for (const { name, label, text } of texts) {
    const longer = `${query}${query ? "&" : "?"}${new URLSearchParams([[name, text]]).toString()}`;
    if (longer.length <= MAX_SHARED_CHARACTERS) query = longer;
    else omitted.push(label);
  }
  return { query, omitted };
}
