/** The totals of the window, and those of each group. */
import type { SeriesAmounts, SeriesGroupTotals, UsageOverTime } from "../../../build/schema";
import { formatCost, formatCount, formatPercent } from "../../components/format";
import { TableScroll } from "../../components/table-scroll";
import { groupName, measureOf, requestsOfGroup } from "./amounts";
import { GROUPS, type Group, type Measure } from "./query";

export function TotalCards({ totals }: { totals: SeriesAmounts }) {
  const cards: [string, string][] = [
    ["Cost", formatCost(totals)],
    ["Tokens in", formatCount(totals.prompt_tokens)],
    ["Tokens out", formatCount(totals.completion_tokens)],
    ["Requests", formatCount(totals.requests)],
    ["Errors", formatCount(totals.errors)],
  ];
  return (
    <>
      <dl class="cards figures">
        {cards.map(([label, value]) => <div key={label} class="card"><dt>{label}</dt><dd class="figure">{value}</dd></div>)}
      </dl>
      {totals.unpriced_requests > 0 && (
        <p class="hint">
          The cost excludes {formatCount(totals.unpriced_requests)} of {formatCount(totals.requests)} requests. Those failed
          without usage, or the price of their model is not known.
        </p>
      )}
    </>
  );
}

export function GroupTable(
  { usage, by, tagName, measure }: { usage: UsageOverTime; by: Group; tagName: string; measure: Measure },
) {
  const total = measureOf(usage.totals, measure);
  return (
    <TableScroll label="Totals">
      <table class="group-table">
        <thead>
          <tr>
            <th>{GROUPS[by]}</th>
            <th class="number">Requests</th>
            <th class="number">Errors</th>
            <th class="number">Tokens in</th>
            <th class="number">Tokens out</th>
            <th class="number">Cost</th>
            <th class="number">Share</th>
          </tr>
        </thead>
        <tbody>
          {usage.groups.map((group) => (
            <tr key={group.value}>
              <th scope="row"><GroupName group={group} by={by} tagName={tagName} /></th>
              <Amounts amounts={group} />
              <td class="number">{total ? formatPercent(measureOf(group, measure) / total, 1) : "–"}</td>
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr><th scope="row">Total</th><Amounts amounts={usage.totals} /><td class="number">{total ? formatPercent(1) : "–"}</td></tr>
        </tfoot>
      </table>
    </TableScroll>
  );
}

function GroupName({ group, by, tagName }: { group: SeriesGroupTotals; by: Group; tagName: string }) {
  const address = requestsOfGroup(group.value, by, tagName);
  const name = groupName(group, by);
  return address ? <a href={address} title={`Requests of ${name}`}>{name}</a> : <>{name}</>;
}

function Amounts({ amounts }: { amounts: SeriesAmounts }) {
  return (
    <>
      <td class="number">{formatCount(amounts.requests)}</td>
      <td class="number">{formatCount(amounts.errors)}</td>
      <td class="number">{formatCount(amounts.prompt_tokens)}</td>
      <td class="number">{formatCount(amounts.completion_tokens)}</td>
      <td class="number">{formatCost(amounts)}</td>
    </>
  );
}
