/** The page Requests: a search in the ledger, which follows new requests, and the detail of one. */
import { useMemo } from "preact/hooks";
import { BusyButton } from "../components/busy-button";
import { formatCount, formatTime } from "../components/format";
import { EmptyNotice, ErrorNotice, Loading } from "../components/notices";
import { TableScroll } from "../components/table-scroll";
import { type Suggestion, plainSuggestion, showTag, useSuggestions } from "../components/text-filter";
import { TimeZoneHint } from "../components/time-range";
import { addressWith, navigate, useAddress, useQueryParameter } from "../router";
import { useIsAdmin } from "../session";
import { RequestDetail } from "./requests/detail";
import { FilterForm } from "./requests/filter-form";
import { FILTER_NAMES, type FilterName, useFilters, useRequestQuery } from "./requests/query";
import { type LoadedRequests, useRequestList } from "./requests/request-list";
import { FROM_LIST, RequestTable } from "./requests/request-table";
import "../styles/requests.css";

const TABLE_ID = "request-rows";

export default function RequestsPage() {
  const query = useRequestQuery();
  const [live, setLive] = useQueryParameter("live", "on");
  const openRequest = useAddress().searchParams.get("request");
  const isLive = live === "on" && !query["until"];
  const requests = useRequestList(query, () => isLive && !isReading());
  const suggestions = useFilterSuggestions(requests);
  const error = requests.error ?? requests.tailError;
  return (
    <div class="stack">
      <FilterForm suggestions={suggestions} />
      <div class="row">
        {!query["until"] && (
          <button type="button" onClick={() => { setLive(isLive ? "off" : "on"); if (!isLive) requests.showWaiting(); }}>
            {isLive ? "Pause" : "Resume"}
          </button>
        )}
        <p class="hint" role="status">{describeTail(requests, isLive, Boolean(query["until"]))}</p>
        {(requests.isBehind || requests.waiting.length > 0) && (
          <button type="button" class="primary" onClick={() => { requests.showWaiting(); window.scrollTo({ top: 0 }); }}>
            {requests.isBehind ? "Show the newest" : `Show ${formatCount(requests.waiting.length)} new`}
          </button>
        )}
      </div>
      {error && <ErrorNotice error={error} onRetry={requests.reload} />}
      <Results requests={requests} />
      <TimeZoneHint />
      {openRequest && (
        <RequestDetail key={openRequest} id={openRequest} onClose={closeRequest} />
      )}
    </div>
  );
}

/** Leaves no entry in the history that opens the request again. */
function closeRequest(): void {
  if (history.state === FROM_LIST) history.back();
  else navigate(addressWith({ request: "" }), { replace: true });
}

function Results({ requests }: { requests: LoadedRequests }) {
  const isAdmin = useIsAdmin();
  const { rows, nextPage, searchedUntil, isLoading } = requests;
  if (!rows) return requests.error ? null : <Loading />;
  return (
    <>
      <RefusedHint />
      {rows.length === 0 && !nextPage && <NoRequests />}
      {rows.length > 0 && (
        <TableScroll id={TABLE_ID} label="Requests" isStale={isLoading}>
          <RequestTable rows={rows} showsKeys={isAdmin} />
        </TableScroll>
      )}
      {nextPage && (
        <div class="row">
          <BusyButton type="button" isBusy={isLoading} onClick={requests.loadMore}>{isLoading ? "Loading…" : "Load more"}</BusyButton>
          <p class="hint">{formatCount(rows.length)} shown. Searched back to {formatTime(searchedUntil)}.</p>
        </div>
      )}
    </>
  );
}

/** Refused requests have no provider. */
function RefusedHint() {
  const { provider, status } = useFilters();
  if (!provider || (status && status !== "refused")) return null;
  return <p class="hint">Refused requests are left out: they have no provider.</p>;
}

function NoRequests() {
  const filters = useFilters();
  return FILTER_NAMES.some((name) => filters[name])
    ? <EmptyNotice title="No request matches"><p>Remove a filter, or choose a longer time range.</p></EmptyNotice>
    : <EmptyNotice title="No requests in this time"><p>Choose a longer time range, or send a request: the page Connect shows how.</p></EmptyNotice>;
}

/** Rows must not move under the eyes of the viewer. */
function isReading(): boolean {
  const table = document.getElementById(TABLE_ID);
  return window.scrollY > 150 || document.querySelector("dialog[open]") !== null || (table?.contains(document.activeElement) ?? false);
}

function describeTail(requests: LoadedRequests, isLive: boolean, hasEnd: boolean): string {
  if (hasEnd) return "";
  if (requests.tailError) return "New requests are missing. The page tries again by itself.";
  const waiting = requests.waiting.length;
  if (requests.isBehind) return `${isLive ? "Live" : "Paused"}. There are more new requests than can be added to this list.`;
  if (!isLive) return waiting ? `Paused. ${formatCount(waiting)} waiting.` : "Paused.";
  return waiting ? `Live. ${formatCount(waiting)} waiting while you read.` : "Live: new requests appear by themselves.";
}

/** The error codes of https://platform.openai.com/docs/guides/error-codes and of the gateway that are most frequent. */
const FREQUENT_CODES = [
  "provider_error", "rate_limit_exceeded", "insufficient_quota", "invalid_api_key", "model_not_found", "invalid_request",
  "context_length_exceeded",
];

/** Suggests what the key may see, and the values of the loaded requests. */
function useFilterSuggestions({ rows }: LoadedRequests): Partial<Record<FilterName, Suggestion[]>> {
  const known = useSuggestions();
  return useMemo(() => {
    const codes = new Set(FREQUENT_CODES);
    const providers = new Set(known.provider.map(({ value }) => value));
    const tags = new Set<string>();
    for (const row of rows ?? []) {
      if (row.code) codes.add(row.code);
      if (row.provider) providers.add(row.provider);
      for (const [name, value] of Object.entries(row.tags)) tags.add(`${name}:${value}`);
    }
    return {
      model: known.model,
      key: known.key,
      provider: [...providers].map(plainSuggestion),
      code: [...codes].map(plainSuggestion),
      tag: [...tags].map((tag) => ({ value: tag, label: showTag(tag) })),
    };
  }, [rows, known]);
}
