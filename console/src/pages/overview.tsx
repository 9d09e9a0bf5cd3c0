/** The page Overview: use and health of the last 24 hours, or on an empty system the first steps. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Overview, ProviderList } from "../../build/schema";
import { ApiError, get } from "../api/client";
import { Chart } from "../components/chart";
import { useData } from "../components/data";
import { formatCost, formatCount, formatMilliseconds, formatPercent, formatTime } from "../components/format";
import { useRequestEvents } from "../components/live";
import { ErrorNotice, Loading } from "../components/notices";
import { intervalStarts, sumByInterval } from "../components/series";
import { TimeZoneHint } from "../components/time-range";
import { pagePath } from "../router";
import { useIsAdmin } from "../session";
import { FirstRun } from "./overview/first-run";
import { Health } from "./overview/health";
import "../styles/overview.css";

const POLL_MILLISECONDS = 4000;
const POLL_WITH_EVENTS_MILLISECONDS = 15_000;
/** The states of providers cost the gateway more than the overview, and change rarely. */
const PROVIDERS_MILLISECONDS = 10_000;
/** Events in quick succession cause one reload. */
const EVENT_DELAY_MILLISECONDS = 500;

export default function OverviewPage() {
  const isAdmin = useIsAdmin();
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const reloadNow = useRef<() => void>(() => undefined);
  const isConnected = useRequestEvents(() => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => reloadNow.current(), EVENT_DELAY_MILLISECONDS);
  });
  const known = useRef<{ providers: ProviderList; time: number } | null>(null);
  const { data, error, reload } = useData(async (signal) => {
    const isRecent = known.current && performance.now() - known.current.time < PROVIDERS_MILLISECONDS;
    const [overview, providers] = await Promise.all([
      get("/v1/overview", undefined, signal),
      isAdmin && !isRecent ? get("/v1/admin/providers", undefined, signal) : null,
    ]);
    if (providers) known.current = { providers, time: performance.now() };
    return { overview, providers: isAdmin ? known.current?.providers ?? null : null };
  }, [isAdmin], isConnected ? POLL_WITH_EVENTS_MILLISECONDS : POLL_MILLISECONDS);
  reloadNow.current = reload;
  useEffect(() => () => clearTimeout(timer.current), []);

  if (!data) return error ? <ErrorNotice error={error} onRetry={reload} /> : <Loading />;
  const { overview, providers } = data;
  return (
    <div class="stack">
      {error && <StaleNotice error={error} />}
      {!error && <Health overview={overview} providers={providers} />}
      {overview.is_empty ? <FirstRun overview={overview} /> : <Figures overview={overview} isConnected={isConnected && !error} />}
    </div>
  );
}

function StaleNotice({ error }: { error: ApiError }) {
  return (
    <div class="notice error" role="alert">
      <p>{error.message}</p>
      <p class="hint">These are the last known numbers. The page tries again by itself.</p>
    </div>
  );
}

function Figures({ overview, isConnected }: { overview: Overview; isConnected: boolean }) {
  const { totals, latency_ms: latency, ttfb_ms: firstByte } = overview;
  const errorShare = totals.requests ? totals.errors / totals.requests : 0;
  return (
    <>
      <div class="row">
        <h2>Last 24 hours</h2>
        <span class={`badge ${isConnected ? "good" : ""}`}>{isConnected ? "Live" : "Polling"}</span>
        {overview.open_requests !== null && <span class="hint">{formatCount(overview.open_requests)} requests in flight</span>}
      </div>
      <dl class="cards figures">
        <Figure label="Requests" value={formatCount(totals.requests)} page="Requests">
          Without <a href={`${pagePath("Requests")}?status=refused`}>refused ones</a>, which reached no provider
        </Figure>
        <Figure label="Errors" value={formatCount(totals.errors)} page="Requests" query="?status=error" isBad={totals.errors > 0}>
          {`${formatPercent(errorShare, errorShare > 0 && errorShare < 0.1 ? 1 : 0)} of requests`}
        </Figure>
        <Figure label="Tokens" value={formatCount(totals.prompt_tokens + totals.completion_tokens)} page="Usage" query="?measure=tokens">
          {`${formatCount(totals.prompt_tokens)} in, ${formatCount(totals.completion_tokens)} out`}
        </Figure>
        <Figure label="Cost" value={formatCost(totals)} page="Usage" />
        <Figure label="Latency p50" value={formatMilliseconds(latency.p50)}>{`First byte ${formatMilliseconds(firstByte.p50)}`}</Figure>
        <Figure label="Latency p99" value={formatMilliseconds(latency.p99)}>{`First byte ${formatMilliseconds(firstByte.p99)}`}</Figure>
      </dl>
      <p class="hint">
        Since {formatTime(overview.since)}: the first hour counts from its start, so the figures cover up to an hour more. The percentiles are those of the newest {formatCount(overview.sample_size)} successful requests.
      </p>
      <LastHour overview={overview} />
      <TimeZoneHint />
    </>
  );
}

function Figure(
  { label, value, page, query = "", isBad = false, children }: {
    label: string; value: string; page?: "Requests" | "Usage"; query?: string; isBad?: boolean; children?: ComponentChildren;
  },
) {
  return (
    <div class="card">
      <dt>{label}</dt>
      <dd class={`figure ${isBad ? "bad" : ""}`}>{page ? <a href={pagePath(page) + query}>{value}</a> : value}</dd>
      {children && <dd class="hint">{children}</dd>}
    </div>
  );
}

function LastHour({ overview }: { overview: Overview }) {
  const until = new Date(overview.until);
  const since = new Date(until.getTime() - 59 * 60_000);
  const times = intervalStarts(since.toISOString(), until.toISOString(), "minute");
  const errors = sumByInterval(times, overview.per_minute, (point) => point.errors);
  const successes = sumByInterval(times, overview.per_minute, (point) => point.requests - point.errors);
  const total = overview.per_minute.reduce((sum, point) => sum + point.requests, 0);
  const failed = overview.per_minute.reduce((sum, point) => sum + point.errors, 0);
  return (
    <section class="card stack" aria-labelledby="last-hour">
      <h2 id="last-hour">Requests per minute, last hour</h2>
      <Chart
        times={times} stepSeconds={60} format={formatCount} summary={`${formatCount(total)} requests in the last hour, of which ${formatCount(failed)} failed.`}
        series={[{ label: "Errors", values: errors, color: "bad" }, { label: "Others", values: successes, color: 1 }]}
      />
      <details>
        <summary>As a table</summary>
        <table>
          <thead><tr><th>Minute</th><th class="number">Requests</th><th class="number">Errors</th></tr></thead>
          <tbody>
            {overview.per_minute.map((point) => (
              <tr key={point.time}>
                <td>{formatTime(point.time)}</td><td class="number">{formatCount(point.requests)}</td><td class="number">{formatCount(point.errors)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </section>
  );
}
