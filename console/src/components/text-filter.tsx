/** A filter that is a text, with suggestions. It is applied when the text is complete. */
import { useEffect, useId, useState } from "preact/hooks";
import { get } from "../api/client";
import { useIsAdmin } from "../session";
import { useData } from "./data";
import { Field } from "./field";
import { useKeyMatch } from "./key-filter";
import { formatTag, parseTag } from "./tag";

export interface Suggestion {
  /** The value in the address and in the API. */
  value: string;
  /** What the field shows. No two suggestions of a field have the same label. */
  label: string;
}

/** The filters that the API's lists have suggestions for. */
export type SuggestedFilter = "model" | "provider" | "key";

const MAX_SUGGESTED_KEYS = 1000;

/** Returns suggestions from the models, providers and keys that the key of the session may see. */
export function useSuggestions(): Record<SuggestedFilter, Suggestion[]> {
  const isAdmin = useIsAdmin();
  const { data } = useData(async (signal) => {
    const [models, providers, keys] = await Promise.all([
      get("/v1/models", {}, signal),
      isAdmin ? get("/v1/admin/providers", undefined, signal) : null,
      isAdmin ? get("/v1/admin/keys", { limit: MAX_SUGGESTED_KEYS }, signal) : null,
    ]);
    return {
      model: models.data.map(({ id }) => plainSuggestion(id)),
      provider: (providers?.data ?? []).filter(({ configured }) => configured).map(({ name }) => plainSuggestion(name)),
      key: keys ? keySuggestions([...keys.data, ...keys.configured], keys.has_more) : [],
    };
  }, [isAdmin]);
  return data ?? { model: [], provider: [], key: [] };
}

export function plainSuggestion(value: string): Suggestion {
  return { value, label: value };
}

/** Keys are shown by their names. Two keys can have the same name, and one of them can be among those that are not listed. */
function keySuggestions(keys: { id: string; name: string }[], isIncomplete: boolean): Suggestion[] {
  const counts = new Map<string, number>();
  for (const { name } of keys) counts.set(name, (counts.get(name) ?? 0) + 1);
  return keys.map(({ id, name }) => ({
    value: id, label: isIncomplete || counts.get(name) !== 1 ? nameWithId({ id, name }) : name,
  }));
}

function nameWithId({ id, name }: { id: string; name: string }): string {
  return `${name} (${id})`;
}

export function TextFilter(
  { name, label: title, hint = "", value, suggestions, onChange }: {
    name: string; label: string; hint?: string; value: string; suggestions: Suggestion[] | undefined;
    onChange: (value: string) => void;
  },
) {
  const listId = useId();
  // Kept until it is complete: suggestions that arrive meanwhile must not replace it.
  const [draft, setDraft] = useState<string | null>(null);
  const suggested = suggestions?.find((each) => each.value === value)?.label;
  const match = useKeyMatch(name === "key" && suggested === undefined ? value : "");
  const label = suggested ?? (match?.key && nameWithId(match.key)) ?? value;
  const shown = name === "tag" ? showTag(value) : label;
  const read = (text: string): string => (
    name === "tag" ? readTag(text) : suggestions?.find((each) => each.label === text.trim())?.value ?? text.trim()
  );
  // A label that was complete before the suggestions arrived, or a name that the gateway knows.
  const early = suggestions?.find((each) => each.label === value && each.value !== value)?.value
    ?? (match?.key?.id === value ? undefined : match?.key?.id);
  useEffect(() => {
    if (early !== undefined) onChange(early);
  }, [early]);
  return (
    <Field name={name} label={title} {...(match?.problem && draft === null && { problems: { [name]: match.problem } })}>
      {(attributes) => (
        <>
          <input
            {...attributes} type="text" value={draft ?? shown} placeholder={hint} maxLength={400} autocomplete="off"
            spellcheck={false} list={listId} onInput={(event) => setDraft(event.currentTarget.value)}
            onBlur={() => setDraft(null)}
            onChange={(event) => {
              setDraft(null);
              onChange(read(event.currentTarget.value));
            }}
          />
          <datalist id={listId}>
            {suggestions?.map((each) => <option key={each.value} value={each.label} />)}
          </datalist>
        </>
      )}
    </Field>
  );
}

/** Formats a tag of the API, `name:value`, as pages and commands show it: `name=value`. */
export function showTag(tag: string): string {
  const [name = "", ...value] = tag.split(":");
  return value.length ? formatTag(name, value.join(":")) : tag;
}

function readTag(text: string): string {
  const tag = parseTag(text, /[=:]/);
  return tag ? tag.join(":") : text.trim();
}
