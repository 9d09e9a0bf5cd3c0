/** The chart of a measure over time, its summary, and the same numbers as a table. */
import { useMemo } from "preact/hooks";
import type { UsageOverTime } from "../../../build/schema";
import { Chart, type ChartSeries } from "../../components/chart";
import { formatCount, formatPercent, formatTime, formatUsd } from "../../components/format";
import { STEP_SECONDS, intervalStarts, sumByInterval } from "../../components/series";
import { TableScroll } from "../../components/table-scroll";
import { formatMeasure, formatMeasureTick, groupName, measureOf } from "./amounts";
import { type Group, MEASURES, type Measure } from "./query";

/** The groups with a color of their own. The others are shown together. */
const SHOWN_GROUPS = 7;
const MAX_TABLE_ROWS = 800;

export function UsageChart({ usage, by, measure }: { usage: UsageOverTime; by: Group; measure: Measure }) {
  const times = useMemo(() => intervalStarts(usage.since, usage.until, usage.interval), [usage]);
  const series = useMemo(() => chartSeries(usage, by, measure, times), [usage, by, measure, times]);
  const format = (value: number): string => formatMeasure(value, measure);
  const rows = times.map((time, index) => ({ time, values: series.map(({ values }) => values[index] ?? 0) }))
    .filter(({ values }) => values.some((value) => value > 0)).reverse().slice(0, MAX_TABLE_ROWS);
  const summary = summarize(usage, by, measure);
  return (
    <section class="card stack" aria-labelledby="usage-chart">
      <h2 id="usage-chart">{MEASURES[measure]} per {usage.interval}</h2>
      <p class="chart-summary">{summary}</p>
      <Chart
        times={times} stepSeconds={STEP_SECONDS[usage.interval]} series={series} format={format}
        formatTick={(value) => formatMeasureTick(value, measure)} summary={`${MEASURES[measure]} per ${usage.interval}. ${summary}`}
      />
      {usage.interval === "day" && <p class="hint">Days begin at midnight UTC.</p>}
      <details>
        <summary>As a table</summary>
        <TableScroll label={`${MEASURES[measure]} per ${usage.interval}`}>
          <table>
            <thead><tr><th>Start</th>{series.map(({ label }) => <th key={label} class="number">{label}</th>)}</tr></thead>
            <tbody>
              {rows.map(({ time, values }) => (
                <tr key={time}>
                  <th scope="row">{formatTime(new Date(time * 1000).toISOString())}</th>
                  {values.map((value, index) => <td key={index} class="number">{format(value)}</td>)}
                </tr>
              ))}
            </tbody>
          </table>
        </TableScroll>
      </details>
    </section>
  );
}

function chartSeries(usage: UsageOverTime, by: Group, measure: Measure, times: number[]): ChartSeries[] {
  const ranked = [...usage.groups].sort((a, b) => measureOf(b, measure) - measureOf(a, measure));
  // One group more does not need a sum of its own.
  const shown = ranked.length <= SHOWN_GROUPS + 1 ? ranked : ranked.slice(0, SHOWN_GROUPS);
  const shownValues = new Set(shown.map(({ value }) => value));
  const series = shown.map((group, index): ChartSeries => ({
    label: groupName(group, by),
    values: sumByInterval(times, usage.data.filter(({ value }) => value === group.value), (point) => measureOf(point, measure)),
    color: index + 1,
  }));
  if (shown.length < ranked.length) {
    const others = usage.data.filter(({ value }) => !shownValues.has(value));
    series.push({
      label: `${ranked.length - shown.length} others`, color: "other",
      values: sumByInterval(times, others, (point) => measureOf(point, measure)),
    });
  }
  return series;
}

function summarize(usage: UsageOverTime, by: Group, measure: Measure): string {
  const total = measureOf(usage.totals, measure);
  const amount = measure === "cost" ? formatUsd(usage.totals.requests === 0 ? 0 : usage.totals.cost_usd) : `${formatCount(total)} ${measure}`;
  const text = `In whole ${usage.interval}s from ${formatTime(usage.since)} until ${formatTime(usage.until)}: ${amount}.`;
  const [top] = [...usage.groups].sort((a, b) => measureOf(b, measure) - measureOf(a, measure));
  if (!top || !total) return text;
  return `${text} The most, ${formatPercent(measureOf(top, measure) / total)}, by ${groupName(top, by)}.`;
}
