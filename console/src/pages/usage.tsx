/** The page Usage: cost, tokens and requests over time. One response feeds the totals, the chart and the table. */
import type { UsageOverTime } from "../../build/schema";
import { get } from "../api/client";
import { useData } from "../components/data";
import { formatTime } from "../components/format";
import { EmptyNotice, ErrorNotice, Loading } from "../components/notices";
import { TimeZoneHint } from "../components/time-range";
import { UsageControls } from "./usage/controls";
import { useUsageChoice } from "./usage/query";
import { GroupTable, TotalCards } from "./usage/totals";
import { UsageChart } from "./usage/usage-chart";
import "../styles/usage.css";

const REFRESH_MILLISECONDS = 30_000;

export default function UsagePage() {
  const choice = useUsageChoice();
  const query = choice.parameters && JSON.stringify(choice.parameters);
  const { data, error, reload } = useData(
    async (signal) => ({
      query,
      group: choice.group,
      tagName: choice.tagName,
      usage: choice.parameters && await get("/v1/usage/series", choice.parameters, signal),
    }),
    [query], choice.parameters?.["until"] ? 0 : REFRESH_MILLISECONDS,
  );
  const usage = data?.usage;
  return (
    <div class="stack">
      <UsageControls choice={choice} />
      {error && <ErrorNotice error={error} onRetry={reload} />}
      {!data && !error && <Loading />}
      {!query && <EmptyNotice title="Which tag?"><p>Enter the name of a tag, such as <code>team</code>.</p></EmptyNotice>}
      {query && usage && (
        <div class={`stack ${data.query === query ? "" : "stale"}`} aria-busy={data.query === query || error ? undefined : true}>
          {Date.parse(usage.complete_since) > Date.parse(usage.since) && (
            <p class="notice warning" role="status">
              There were too many requests to read in time. These numbers begin at {formatTime(usage.complete_since)}. Choose a
              time range of 24 hours or more for complete sums.
            </p>
          )}
          <p class="hint">{describeRange(usage)}</p>
          <TotalCards totals={usage.totals} />
          {usage.totals.requests === 0
            ? <EmptyNotice title="No usage in this time"><p>Choose a longer time range, or remove a filter.</p></EmptyNotice>
            : (
              <>
                <UsageChart usage={usage} by={data.group} measure={choice.measure} />
                <GroupTable usage={usage} by={data.group} tagName={data.tagName} measure={choice.measure} />
              </>
            )}
        </div>
      )}
      <TimeZoneHint />
    </div>
  );
}

/** The sums are those of whole intervals, so they begin up to one interval before the chosen range. */
function describeRange({ since, until, interval }: UsageOverTime): string {
  if (Date.parse(since) > Date.now()) return `The time range begins in the future, at ${formatTime(since)}.`;
  const end = Date.parse(until) > Date.now() ? "now" : formatTime(until);
  return `From ${formatTime(since)} until ${end}, in whole ${interval}s${interval === "day" ? " (UTC)" : ""}.`;
}
