/** The fields of the key form as text, and the request that they make. */
import type { ShownKey } from "../../../build/schema";
import { formatTag, parseTag } from "../../components/tag";

export const SCOPES = [
  { scope: "chat", meaning: "chat, embeddings" },
  { scope: "speech", meaning: "speech and voices" },
  { scope: "registry:read", meaning: "pull bundles" },
  { scope: "registry:write", meaning: "push and yank bundles" },
  { scope: "metrics", meaning: "read metrics" },
  { scope: "admin", meaning: "everything" },
];
const DEFAULT_SCOPES = ["chat", "speech", "registry:read"];

export interface KeyFields {
  name: string;
  scopes: string[];
  /** No model means all models. */
  models: string[];
  rpm: string;
  tpm: string;
  concurrency: string;
  budget_usd: string;
  budget_period: string;
  /** The value of an `<input type="datetime-local">`. */
  expires: string;
  /** One tag on a line. */
  tags: string;
}

export function initialFields(apiKey?: ShownKey): KeyFields {
  const text = (value: number | null | undefined): string => (value == null ? "" : String(value));
  return {
    name: apiKey?.name ?? "",
    scopes: apiKey?.scopes ?? DEFAULT_SCOPES,
    models: apiKey?.models ?? [],
    rpm: text(apiKey?.rpm),
    tpm: text(apiKey?.tpm),
    concurrency: text(apiKey?.concurrency),
    budget_usd: text(apiKey?.budget_usd),
    budget_period: apiKey?.budget_period ?? "total",
    expires: apiKey?.expires ? toLocalInput(apiKey.expires) : "",
    tags: Object.entries(apiKey?.tags ?? {}).map(([name, value]) => formatTag(name, value)).join("\n"),
  };
}

/** Returns the fields that differ from the initial ones, so that concurrent changes of others stay. */
export function changedFields(initial: Partial<KeyFields>, fields: KeyFields): Partial<KeyFields> {
  return Object.fromEntries(
    Object.entries(fields).filter(([name, value]) => (
      JSON.stringify(initial[name as keyof KeyFields]) !== JSON.stringify(value)
    )),
  );
}

/** Returns what is wrong with the given fields, by name. The server checks them as well. */
export function findProblems(fields: Partial<KeyFields>): Record<string, string> {
  const problems: Record<string, string> = {};
  if (fields.name?.trim() === "") problems["name"] = "Enter a name.";
  if (fields.scopes?.length === 0) problems["scopes"] = "Choose at least one scope.";
  for (const name of ["rpm", "tpm", "concurrency"] as const) {
    const text = fields[name]?.trim() ?? "";
    if (text && !(/^\d+$/.test(text) && Number(text) >= 1)) problems[name] = "Enter a whole number of at least 1.";
  }
  const budget = fields.budget_usd?.trim() ?? "";
  if (budget && !(Number(budget) > 0 && Number.isFinite(Number(budget)))) {
    problems["budget_usd"] = "Enter an amount above 0, such as 1.50.";
  }
  if (fields.expires && !(Date.parse(fields.expires) > Date.now())) problems["expires"] = "The time is in the past.";
  const lines = (fields.tags ?? "").split("\n").filter((line) => line.trim());
  if (lines.some((line) => !parseTag(line, /=/))) problems["tags"] = "Write each tag as name=value.";
  return problems;
}

export function toRequest(fields: Partial<KeyFields>, { isNew = false } = {}): Record<string, unknown> {
  const request: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(fields)) request[name] = toJson(name as keyof KeyFields, value);
  // The period means nothing without a budget.
  if (request["budget_usd"] === null || (isNew && fields.budget_usd === "")) request["budget_period"] = null;
  return request;
}

function toJson(name: keyof KeyFields, value: string | string[]): unknown {
  if (Array.isArray(value)) return name === "models" && !value.length ? null : value;
  switch (name) {
    case "name":
    case "budget_period":
      return value;
    case "expires": {
      const time = new Date(value);
      return value === "" ? null : Number.isNaN(time.getTime()) ? value : time.toISOString();
    }
    case "tags":
      return parseTags(value);
    default:
      // Text that is no number goes to the server, which names the field in its error.
      return value.trim() === "" ? null : Number.isNaN(Number(value)) ? value : Number(value);
  }
}

function parseTags(text: string): Record<string, string> {
  const tags: Record<string, string> = {};
  for (const line of text.split("\n")) {
    const tag = parseTag(line, /=/);
    if (tag) tags[tag[0]] = tag[1];
  }
  return tags;
}

function toLocalInput(isoTime: string): string {
  const time = new Date(isoTime);
  return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
