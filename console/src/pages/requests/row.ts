/** A row of the list: an entry of the ledger, or a refused request, of which the ledger has none. */
import type { Entry, RefusedRequest } from "../../../build/schema";

export interface RequestRow {
  request_id: string;
  isRefused: boolean;
  time: string;
  status: string;
  http_status: number;
  code: string | null;
  /** The limit that was reached, if the request was refused by one. */
  limit: string | null;
  key_id: string | null;
  key_name: string | null;
  tags: Record<string, string>;
  model: string | null;
  provider: string | null;
  attempts: number;
  prompt_tokens: number | null;
  completion_tokens: number | null;
  cost_usd: number | null;
  latency_ms: number | null;
}

export function rowOfEntry(entry: Entry): RequestRow {
  return { ...entry, isRefused: false, model: entry.model ?? entry.model_asked, limit: null };
}

export function rowOfRefused(refused: RefusedRequest): RequestRow {
  return {
    ...refused,
    isRefused: true,
    tags: refused.tags,
    model: refused.model_asked,
    provider: null,
    attempts: 0,
    prompt_tokens: null,
    completion_tokens: null,
    cost_usd: null,
  };
}
