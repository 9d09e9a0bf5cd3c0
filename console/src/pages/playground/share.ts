/** Models and prompt in the address, to share them. */
import { type Column, type Conversation, MAX_MODELS, NO_SETTINGS, modelOf, newConversation, toColumns } from "./types";

/** A longer address is cut off by some programs. */
const MAX_SHARED_CHARACTERS = 4000;

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

/** Returns the query of an address that opens the playground with these columns and this prompt. */
export function shareAddress(columns: Column[], prompt: string, system = ""): string {
  const query = new URLSearchParams(columns.map((column) => ["model", modelOf(column)]));
  if (prompt) query.set("prompt", prompt);
  if (system) query.set("system", system);
  if (query.toString().length > MAX_SHARED_CHARACTERS) return prompt || system ? shareAddress(columns, "") : "";
  return query.size ? `?${query.toString()}` : "";
}
