/** Finds the key that the text of a filter means, among all keys of the gateway. */
import { get } from "../api/client";
import { useData } from "./data";

const PAGE_KEYS = 1000;
const MAX_PAGES = 10;
const MAX_SHOWN_IDS = 5;

export interface KeyMatch {
  text: string;
  /** The key with this id, or the only one with this name. */
  key: { id: string; name: string } | null;
  /** Why no key is found. */
  problem: string;
}

/** Asks the gateway for the key of a text. Returns null for no text, and until the gateway has responded. */
export function useKeyMatch(text: string): KeyMatch | null {
  const { data } = useData((signal) => (text ? findKey(text, signal) : Promise.resolve(null)), [text]);
  return data?.text === text ? data : null;
}

async function findKey(text: string, signal: AbortSignal): Promise<KeyMatch> {
  const named = new Map<string, string>();
  let after = "";
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const keys = await get("/v1/admin/keys", { search: text, limit: PAGE_KEYS, after }, signal);
    for (const { id, name } of [...keys.data, ...keys.configured]) {
      if (id === text) return { text, key: { id, name }, problem: "" };
      if (name.trim() === text) named.set(id, name);
    }
    after = keys.data.at(-1)?.id ?? "";
    if (!keys.has_more) return matchOf(text, named);
  }
  return { text, key: null, problem: "Too many keys have this text in their names. Enter the id of the key." };
}

function matchOf(text: string, named: Map<string, string>): KeyMatch {
  const [first, ...others] = [...named];
  if (!first) return { text, key: null, problem: "No key has this name or id." };
  if (!others.length) return { text, key: { id: first[0], name: first[1] }, problem: "" };
  const ids = [...named.keys()].slice(0, MAX_SHOWN_IDS).join(", ");
  const more = named.size > MAX_SHOWN_IDS ? ", …" : "";
  return { text, key: null, problem: `${named.size} keys have this name. Enter the id of one: ${ids}${more}` };
}
