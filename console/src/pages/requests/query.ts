/** The filters of the page Requests. Each is a parameter of its address. */
import { useMemo } from "preact/hooks";
import { useTimeRange } from "../../components/time-range";
import { useAddress } from "../../router";

/** The names in the address, which are those of the API except for `request_id`: `request` opens a request. */
export const FILTER_NAMES = ["model", "provider", "key", "status", "http_status", "code", "tag", "endpoint", "request_id"] as const;
export type FilterName = (typeof FILTER_NAMES)[number];
export type Filters = Record<FilterName, string>;

export function useFilters(): Filters {
  const address = useAddress();
  return Object.fromEntries(FILTER_NAMES.map((name) => [name, address.searchParams.get(name)?.trim() ?? ""])) as Filters;
}

/** Returns the parameters of `GET /v1/requests`. The object changes only with the filters. */
export function useRequestQuery(): Record<string, string> {
  const { request_id, ...filters } = useFilters();
  const { since, until } = useTimeRange();
  const text = JSON.stringify({ ...filters, request: request_id, since, until });
  return useMemo(() => JSON.parse(text) as Record<string, string>, [text]);
}
