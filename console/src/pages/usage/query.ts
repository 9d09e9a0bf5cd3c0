/** The choices of the page Usage. Each is a parameter of its address. */
import { useTimeRange } from "../../components/time-range";
import type { Interval } from "../../components/series";
import { useAddress } from "../../router";

export const GROUPS = { model: "Model", provider: "Provider", key: "Key", tag: "Tag" };
export type Group = keyof typeof GROUPS;
export const MEASURES = { cost: "Cost", tokens: "Tokens", requests: "Requests" };
export type Measure = keyof typeof MEASURES;
export const USAGE_FILTERS = { model: "Only model", provider: "Only provider", key: "Only key", tag: "Only tag" };

const MINUTES_UNTIL_SECONDS = 6 * 3600;
const HOURS_UNTIL_SECONDS = 8 * 86_400;

export interface UsageChoice {
  group: Group;
  /** The name of the tag, if the group is `tag`. */
  tagName: string;
  measure: Measure;
  interval: Interval;
  /** The parameters of `GET /v1/usage/series`, or null while the name of the tag is missing. */
  parameters: Record<string, string> | null;
}

export function useUsageChoice(): UsageChoice {
  const { searchParams } = useAddress();
  const { since, until, seconds } = useTimeRange();
  const by = searchParams.get("by") ?? "model";
  const group = (by in GROUPS ? by : "model") as Group;
  const tagName = searchParams.get("tag_name")?.trim() ?? "";
  const measured = searchParams.get("measure") ?? "cost";
  const interval = seconds < MINUTES_UNTIL_SECONDS ? "minute" : seconds <= HOURS_UNTIL_SECONDS ? "hour" : "day";
  const filters = Object.fromEntries(
    Object.keys(USAGE_FILTERS).map((name) => [name, searchParams.get(name)?.trim() ?? ""]),
  );
  return {
    group,
    tagName,
    measure: (measured in MEASURES ? measured : "cost") as Measure,
    interval,
    parameters: group === "tag" && !tagName
      ? null
      : { ...filters, since, until, interval, by: group === "tag" ? `tag:${tagName}` : group },
  };
}
