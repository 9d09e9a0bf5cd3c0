/** Measures and names of usage. */
import type { SeriesAmounts, SeriesGroupTotals } from "../../../build/schema";
import { formatCount, formatExactUsd, formatUsd } from "../../components/format";
import { pagePath } from "../../router";
import type { Group, Measure } from "./query";

export function measureOf(amounts: SeriesAmounts, measure: Measure): number {
  switch (measure) {
    case "cost":
      return amounts.cost_usd ?? 0;
    case "tokens":
      return amounts.prompt_tokens + amounts.completion_tokens;
    case "requests":
      return amounts.requests;
  }
}

export function formatMeasure(value: number, measure: Measure): string {
  return measure === "cost" ? formatUsd(value) : formatCount(value);
}

export function formatMeasureTick(value: number, measure: Measure): string {
  return measure === "cost" ? formatExactUsd(value) : formatCount(value);
}

/** `value` is null for all groups after the first 100, and empty for requests without a value. */
export function groupName(group: Pick<SeriesGroupTotals, "value" | "name">, by: Group): string {
  if (group.value === null) return "All others";
  if (group.value === "") return by === "tag" ? "Without this tag" : "None";
  return group.name ? `${group.name} (${group.value})` : group.value;
}

/** The address of the requests of a group, or null if no filter selects them. */
export function requestsOfGroup(value: string | null, by: Group, tagName: string): string | null {
  if (!value) return null;
  const next = new URL(location.href);
  const kept = [...next.searchParams].filter(([name]) => ["range", "since", "until", "model", "provider", "key", "tag"].includes(name));
  next.search = new URLSearchParams(kept).toString();
  next.searchParams.set(by, by === "tag" ? `${tagName}:${value}` : value);
  return pagePath("Requests") + next.search;
}
