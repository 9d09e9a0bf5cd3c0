/** Loads requests page by page, and looks for new ones. Refused requests come from a list of their own. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { RefusedRequest, RequestList } from "../../../build/schema";
import { ApiError, request, requestJson } from "../../api/client";
import { useRequestEvents } from "../../components/live";
import { type RequestRow, rowOfEntry, rowOfRefused } from "./row";

const TAIL_MILLISECONDS = 2500;
const MAX_REFUSED_ROWS = 500;
const CONSOLE_ROUTES = /^\/(console|v1\/(admin|requests|usage|overview|events))(\/|$)/;
/** An entry can appear some seconds after its time. */
const OVERLAP_MILLISECONDS = 15_000;
const MAX_TAIL_ROWS = 200;
const MAX_ROWS = 2000;

export interface LoadedRequests {
  rows: RequestRow[] | null;
  /** New requests that are not shown yet, newest first. */
  waiting: RequestRow[];
  nextCursor: string | null;
  searchedUntil: string;
  error: ApiError | null;
  isLoading: boolean;
  loadMore: () => void;
  showWaiting: () => void;
  reload: () => void;
}

interface State extends Pick<LoadedRequests, "rows" | "waiting" | "nextCursor" | "searchedUntil" | "error" | "isLoading"> {
  /** Refused requests that are older than the pages of the ledger so far. */
  olderRefused: RequestRow[];
}
const EMPTY: State = {
  rows: null, waiting: [], olderRefused: [], nextCursor: null, searchedUntil: "", error: null, isLoading: true,
};

interface FetchedPage {
  page: RequestList;
  /** Null if they were not asked for: they have no pages. */
  refused: RequestRow[] | null;
  /** The gateway's time, in milliseconds since 1970. */
  time: number;
}

/**
 * `canInsert` says whether new requests may be shown at once. Otherwise they wait. The tail is off for a range with an end.
 */
export function useRequestList(query: Record<string, string>, canInsert: () => boolean): LoadedRequests {
  const [state, setState] = useState<State>(EMPTY);
  const controller = useRef<AbortController | null>(null);
  const checkedAt = useRef(0);
  const mayInsert = useRef(canInsert);
  mayInsert.current = canInsert;
  const lookNow = useRef<() => void>(() => undefined);
  useRequestEvents(() => lookNow.current());

  const load = useCallback(async (parameters: Record<string, string>, apply: (fetched: FetchedPage, previous: State) => State) => {
    controller.current?.abort();
    const current = new AbortController();
    controller.current = current;
    setState((previous) => ({ ...previous, isLoading: true }));
    try {
      const fetched = await fetchPage({ ...query, ...parameters }, current.signal);
      if (current.signal.aborted) return;
      if (!parameters["cursor"]) checkedAt.current = fetched.time;
      setState((previous) => apply(fetched, previous));
    } catch (error) {
      if (current.signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      setState((previous) => ({ ...previous, error, isLoading: false }));
    }
  }, [query]);

  const reload = useCallback(
    () => void load({}, (fetched) => pageState(fetched.page, [], fetched.refused ?? [])), [load],
  );

  const loadMore = (): void => {
    const cursor = state.nextCursor;
    if (!cursor || state.isLoading) return;
    void load({ cursor }, ({ page }, previous) => ({
      ...pageState(page, previous.rows ?? [], previous.olderRefused), waiting: previous.waiting,
    }));
  };

  useEffect(() => {
    reload();
    return () => controller.current?.abort();
  }, [reload]);

  const hasError = state.error !== null;
  useEffect(() => {
    if (query["until"]) return undefined;
    const tail = new AbortController();
    let isBusy = false;
    const look = async (): Promise<void> => {
      if (isBusy || document.hidden || !checkedAt.current) return;
      isBusy = true;
      try {
        const since = new Date(checkedAt.current - OVERLAP_MILLISECONDS).toISOString();
        const { page, refused, time } = await fetchPage({ ...query, since, limit: String(MAX_TAIL_ROWS) }, tail.signal);
        if (tail.signal.aborted) return;
        checkedAt.current = time;
        const entries = page.data.map(rowOfEntry);
        setState((previous) => addNew(previous, [...newerThanNextPage(previous, entries), ...(refused ?? [])], mayInsert.current()));
      } catch (error) {
        if (!(error instanceof ApiError) || tail.signal.aborted) return;
        if (error.status === 0) setState((previous) => ({ ...previous, error }));
      } finally {
        isBusy = false;
      }
    };
    lookNow.current = () => void look();
    const timer = setInterval(() => {
      if (hasError && !checkedAt.current) reload();
      else void look();
    }, TAIL_MILLISECONDS);
    return () => {
      clearInterval(timer);
      tail.abort();
    };
  }, [query, hasError, reload]);

  return {
    ...state,
    loadMore,
    reload,
    showWaiting: () => setState((previous) => insertWaiting(previous)),
  };
}

async function fetchPage(query: Record<string, string>, signal: AbortSignal): Promise<FetchedPage> {
  const [{ page, time }, refused] = await Promise.all([
    query["status"] === "refused" ? emptyPage() : fetchEntries(query, signal), fetchRefused(query, signal),
  ]);
  return { page, refused, time };
}

async function fetchEntries(query: Record<string, string>, signal: AbortSignal): Promise<Pick<FetchedPage, "page" | "time">> {
  const response = await request("/v1/requests", { query, signal });
  // The clock of this machine can differ from the gateway's.
  const time = Date.parse(response.headers.get("date") ?? "") || Date.now();
  return { page: (await response.json()) as RequestList, time };
}

function emptyPage(): Pick<FetchedPage, "page" | "time"> {
  return { page: { object: "list", data: [], next_cursor: null, searched_until: "" }, time: Date.now() };
}

/** Refused requests have no provider. */
async function fetchRefused({ status, provider, cursor, ...query }: Record<string, string>, signal: AbortSignal): Promise<RequestRow[] | null> {
  if (cursor) return null;
  if (provider || (status && status !== "refused")) return [];
  const list = await requestJson<{ data: RefusedRequest[] }>("/v1/requests/refused", {
    query: { ...query, limit: MAX_REFUSED_ROWS }, signal,
  });
  // A console's own failures are found by their ids alone.
  const found = query["request"] ? list.data : list.data.filter(({ endpoint }) => !CONSOLE_ROUTES.test(endpoint));
  return found.map(rowOfRefused);
}

/** Adds a page to the rows, with the refused requests of its time. */
function pageState(page: RequestList, rows: RequestRow[], refused: RequestRow[]): State {
  const start = page.next_cursor ? page.searched_until : "";
  return {
    rows: merge(merge(rows, page.data.map(rowOfEntry)), refused.filter(({ time }) => time >= start)),
    waiting: [],
    olderRefused: refused.filter(({ time }) => time < start),
    nextCursor: page.next_cursor,
    searchedUntil: page.searched_until,
    error: null,
    isLoading: false,
  };
}

/** Entries of the next page are not new, though the tail finds those of the last seconds. Some can have the time of the last row. */
function newerThanNextPage({ nextCursor, searchedUntil }: State, entries: RequestRow[]): RequestRow[] {
  return nextCursor ? entries.filter(({ time }) => time > searchedUntil) : entries;
}

function addNew(previous: State, found: RequestRow[], isInserted: boolean): State {
  const shown = [...(previous.rows ?? []), ...previous.waiting, ...previous.olderRefused];
  const known = new Set(shown.map((row) => row.request_id));
  const added = found.filter((row) => !known.has(row.request_id));
  const error = previous.error?.status === 0 ? null : previous.error;
  if (!added.length && (!isInserted || !previous.waiting.length)) {
    return error === previous.error ? previous : { ...previous, error };
  }
  const next = { ...previous, error, waiting: merge(added, previous.waiting) };
  return isInserted ? insertWaiting(next) : next;
}

function insertWaiting(previous: State): State {
  return { ...previous, rows: merge(previous.waiting, previous.rows ?? []).slice(0, MAX_ROWS), waiting: [] };
}

/** Returns the rows of both lists, newest first, without duplicates. */
function merge(first: RequestRow[], second: RequestRow[]): RequestRow[] {
  const rows = new Map([...first, ...second].map((row) => [row.request_id, row]));
  return [...rows.values()].sort((a, b) => (a.time < b.time ? 1 : a.time > b.time ? -1 : 0));
}
