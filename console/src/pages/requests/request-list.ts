/** Loads requests page by page, and looks for new ones. Refused requests come from a list of their own. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { RefusedRequest, RequestList } from "../../../build/schema";
import { ApiError, onSessionStart, requestJson, requestWithHeaders } from "../../api/client";
import { useRequestEvents } from "../../components/live";
import { type RequestRow, rowOfEntry, rowOfRefused } from "./row";

const TAIL_MILLISECONDS = 2500;
const MAX_REFUSED_ROWS = 500;
const CONSOLE_ROUTES = /^\/(console|v1\/(admin|requests|usage|overview|events))(\/|$)/;
/** An entry can appear some seconds after its time. */
const OVERLAP_MILLISECONDS = 15_000;
const TAIL_PAGE_ROWS = 200;
/** New requests beyond this number are loaded with the list itself, page by page. */
const MAX_TAIL_PAGES = 5;
const MAX_ROWS = 2000;

/** The parameters of the next page: a cursor of the API, or the end of the rows that are shown. */
type NextPage = { cursor: string } | { until: string };

export interface LoadedRequests {
  rows: RequestRow[] | null;
  /** New requests that are not shown yet, newest first. */
  waiting: RequestRow[];
  /** There are more new requests than the tail reads: only `showWaiting` or `reload` loads them. */
  isBehind: boolean;
  nextPage: NextPage | null;
  searchedUntil: string;
  error: ApiError | null;
  /** Why the tail has no new requests at present. It tries again by itself. */
  tailError: ApiError | null;
  isLoading: boolean;
  loadMore: () => void;
  showWaiting: () => void;
  reload: () => void;
}

interface State extends Omit<LoadedRequests, "loadMore" | "showWaiting" | "reload"> {
  /** Refused requests that are older than the pages of the ledger so far. */
  olderRefused: RequestRow[];
}
const EMPTY: State = {
  rows: null, waiting: [], isBehind: false, olderRefused: [], nextPage: null, searchedUntil: "", error: null, tailError: null,
  isLoading: true,
};

interface FetchedPage {
  page: RequestList;
  /** Empty for the pages after the first: refused requests have no pages. */
  refused: RequestRow[];
  /** The gateway's time, in milliseconds since 1970. */
  time: number;
}

/**
 * `canInsert` says whether new requests may be shown at once. Otherwise they wait. The tail is off for a range with an end.
 */
export function useRequestList(query: Record<string, string>, canInsert: () => boolean): LoadedRequests {
  const [state, setState] = useState<State>(EMPTY);
  const isBehind = useRef(false);
  isBehind.current = state.isBehind;
  /** Of the running load, if any. */
  const controller = useRef<AbortController | null>(null);
  /** The time of the last response, in milliseconds since 1970. 0 until the first page of this query is loaded. */
  const checkedAt = useRef(0);
  const mayInsert = useRef(canInsert);
  mayInsert.current = canInsert;
  const pollNow = useRef<() => void>(() => undefined);
  useRequestEvents(() => pollNow.current());

  const load = useCallback(async (next: NextPage | null, apply: (fetched: FetchedPage, previous: State) => State) => {
    controller.current?.abort();
    const current = new AbortController();
    controller.current = current;
    setState((previous) => ({ ...previous, isLoading: true }));
    try {
      const fetched = await fetchPage({ ...query, ...next }, current.signal, next === null);
      if (current.signal.aborted) return;
      controller.current = null;
      if (!next) checkedAt.current = fetched.time;
      setState((previous) => apply(fetched, previous));
    } catch (error) {
      if (current.signal.aborted) return;
      controller.current = null;
      if (!(error instanceof ApiError)) throw error;
      // The rows of another query do not match this one.
      setState((previous) => ({ ...(checkedAt.current ? previous : EMPTY), error, isLoading: false }));
    }
  }, [query]);

  const reload = useCallback(
    () => load(null, (fetched) => pageState(fetched.page, [], fetched.refused)), [load],
  );

  const loadMore = (): void => {
    const next = state.nextPage;
    if (!next || state.isLoading) return;
    void load(next, ({ page }, previous) => {
      // New rows have replaced the oldest ones meanwhile: this page does not follow the others.
      if (previous.nextPage !== next) return { ...previous, isLoading: false };
      const { waiting, isBehind: isStillBehind } = previous;
      return { ...pageState(page, previous.rows ?? [], previous.olderRefused), waiting, isBehind: isStillBehind };
    });
  };

  useEffect(() => {
    checkedAt.current = 0;
    void reload();
    return () => controller.current?.abort();
  }, [reload]);

  const hasError = state.error !== null;
  useEffect(() => (hasError ? onSessionStart(() => void reload()) : undefined), [hasError, reload]);
  const mayRecover = state.error !== null && isTransient(state.error);
  useEffect(() => {
    if (query["until"]) return undefined;
    const tail = new AbortController();
    let isBusy = false;
    const poll = async (): Promise<void> => {
      if (isBusy || document.hidden || !checkedAt.current) return;
      isBusy = true;
      try {
        if (isBehind.current) {
          if (mayInsert.current()) await reload();
          return;
        }
        const since = new Date(checkedAt.current - OVERLAP_MILLISECONDS).toISOString();
        const found = await fetchTail({ ...query, since }, tail.signal);
        if (tail.signal.aborted) return;
        if (!found) {
          setState((previous) => ({ ...previous, waiting: [], isBehind: true }));
          if (mayInsert.current()) await reload();
          return;
        }
        checkedAt.current = found.time;
        setState((previous) => (
          addNew(previous, [...newerThanNextPage(previous, found.entries), ...found.refused], mayInsert.current())
        ));
      } catch (error) {
        if (!(error instanceof ApiError) || tail.signal.aborted) return;
        if (isTransient(error)) setState((previous) => ({ ...previous, tailError: error }));
      } finally {
        isBusy = false;
      }
    };
    pollNow.current = () => void poll();
    const timer = setInterval(() => {
      if (!mayRecover || checkedAt.current) void poll();
      else if (!document.hidden && !controller.current) void reload();
    }, TAIL_MILLISECONDS);
    return () => {
      clearInterval(timer);
      tail.abort();
    };
  }, [query, mayRecover, reload]);

  return {
    ...state,
    loadMore,
    reload: () => void reload(),
    showWaiting: () => { if (state.isBehind) void reload(); else setState((previous) => insertWaiting(previous)); },
  };
}

async function fetchPage(query: Record<string, string>, signal: AbortSignal, hasRefused: boolean): Promise<FetchedPage> {
  const [{ page, time }, refused] = await Promise.all([
    query["status"] === "refused" ? emptyPage() : fetchEntries(query, signal),
    hasRefused ? fetchRefused(query, signal) : [],
  ]);
  return { page, refused, time };
}

/** Returns all requests since a time, or null if they have more pages than the tail reads. */
async function fetchTail(
  query: Record<string, string>, signal: AbortSignal,
): Promise<{ entries: RequestRow[]; refused: RequestRow[]; time: number } | null> {
  const limited = { ...query, limit: String(TAIL_PAGE_ROWS) };
  const { page, refused, time } = await fetchPage(limited, signal, true);
  const entries = page.data.map(rowOfEntry);
  let cursor = page.next_cursor;
  for (let pages = 1; cursor && pages < MAX_TAIL_PAGES; pages += 1) {
    const { page: next } = await fetchEntries({ ...limited, cursor }, signal);
    entries.push(...next.data.map(rowOfEntry));
    cursor = next.next_cursor;
  }
  return cursor ? null : { entries, refused, time };
}

async function fetchEntries(query: Record<string, string>, signal: AbortSignal): Promise<Pick<FetchedPage, "page" | "time">> {
  const { body, headers } = await requestWithHeaders("/v1/requests", { query, signal });
  // The clock of this machine can differ from the gateway's.
  return { page: body as RequestList, time: Date.parse(headers.get("date") ?? "") || Date.now() };
}

function emptyPage(): Pick<FetchedPage, "page" | "time"> {
  return { page: { object: "list", data: [], next_cursor: null, searched_until: "" }, time: Date.now() };
}

/** Refused requests have no provider. */
async function fetchRefused({ status, provider, ...query }: Record<string, string>, signal: AbortSignal): Promise<RequestRow[]> {
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
    isBehind: false,
    olderRefused: refused.filter(({ time }) => time < start),
    nextPage: page.next_cursor ? { cursor: page.next_cursor } : null,
    searchedUntil: page.searched_until,
    error: null,
    tailError: null,
    isLoading: false,
  };
}

/** Whether the same request can succeed later. */
function isTransient({ status }: ApiError): boolean {
  return status === 0 || status === 429 || status >= 500;
}

/** Entries of the next page are not new, though the tail finds those of the last seconds. Some can have the time of the last row. */
function newerThanNextPage({ nextPage, searchedUntil }: State, entries: RequestRow[]): RequestRow[] {
  return nextPage ? entries.filter(({ time }) => time > searchedUntil) : entries;
}

function addNew(previous: State, found: RequestRow[], isInserted: boolean): State {
  const shown = [...(previous.rows ?? []), ...previous.waiting, ...previous.olderRefused];
  const known = new Set(shown.map((row) => row.request_id));
  const added = found.filter((row) => !known.has(row.request_id));
  const error = previous.error?.status === 0 ? null : previous.error;
  if (!added.length && (!isInserted || !previous.waiting.length)) {
    return error === previous.error && !previous.tailError ? previous : { ...previous, error, tailError: null };
  }
  const next = { ...previous, error, tailError: null, waiting: merge(added, previous.waiting) };
  return isInserted ? insertWaiting(next) : next;
}

function insertWaiting(previous: State): State {
  const merged = merge(previous.waiting, previous.rows ?? []);
  const next = { ...previous, rows: merged.slice(0, MAX_ROWS), waiting: [] };
  const oldest = next.rows.at(-1);
  if (!oldest || merged.length <= MAX_ROWS) return next;
  return {
    ...next,
    // The next page begins with the rows that were cut off. Some can have the time of the oldest row.
    nextPage: { until: new Date(Date.parse(oldest.time) + 1).toISOString() },
    searchedUntil: oldest.time,
    olderRefused: merge(merged.slice(MAX_ROWS).filter(({ isRefused }) => isRefused), previous.olderRefused),
  };
}

/** Returns the rows of both lists, newest first, without duplicates. */
function merge(first: RequestRow[], second: RequestRow[]): RequestRow[] {
  const rows = new Map([...first, ...second].map((row) => [row.request_id, row]));
  return [...rows.values()].sort((a, b) => (a.time < b.time ? 1 : a.time > b.time ? -1 : 0));
}
