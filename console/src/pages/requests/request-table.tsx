/** The requests as a table. Each row leads to the detail of its request. */
import { formatCount, formatMilliseconds, formatShortTime, formatTime, formatUsd } from "../../components/format";
import { addressWith, navigate } from "../../router";
import type { RequestRow } from "./row";
import { StatusBadge } from "./status";

/** The state of the address of a request that was opened from the list: the entry before it is the list. */
export const FROM_LIST = "requests:from-list";

export function RequestTable({ rows, showsKeys }: { rows: RequestRow[]; showsKeys: boolean }) {
  return (
    <table class="request-table">
      <thead>
        <tr>
          <th>Time</th>
          <th>Status</th>
          <th>Model</th>
          <th>Provider</th>
          {showsKeys && <th>Key</th>}
          <th class="number">Tokens in</th>
          <th class="number">Tokens out</th>
          <th class="number">Cost</th>
          <th class="number">Latency</th>
        </tr>
      </thead>
      <tbody>{rows.map((row) => <Row key={row.request_id} entry={row} showsKeys={showsKeys} />)}</tbody>
    </table>
  );
}

function Row({ entry, showsKeys }: { entry: RequestRow; showsKeys: boolean }) {
  const address = addressWith({ request: entry.request_id });
  const open = (event: MouseEvent): void => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    event.stopPropagation();
    navigate(address, { state: FROM_LIST });
  };
  return (
    <tr onClick={(event) => { if (!window.getSelection()?.toString()) open(event); }}>
      <td><a href={address} title={formatTime(entry.time)} onClick={open}><time dateTime={entry.time}>{formatShortTime(entry.time)}</time></a></td>
      <td>
        <StatusBadge entry={entry} />
        {entry.code && <><br /><code>{entry.code}</code></>}
        {entry.limit && <span class="hint"> ({entry.limit})</span>}
        {entry.attempts > 1 && <><br /><span class="hint">{entry.attempts} attempts</span></>}
      </td>
      <td class="wrap">{entry.model ?? "–"}</td>
      <td class="wrap">{entry.provider ?? "–"}</td>
      {showsKeys && <td class="wrap">{entry.key_name || entry.key_id || "no valid key"}</td>}
      <td class="number">{formatTokens(entry.prompt_tokens)}</td>
      <td class="number">{formatTokens(entry.completion_tokens)}</td>
      <td class="number">{entry.cost_usd === null ? "–" : formatUsd(entry.cost_usd)}</td>
      <td class="number">{formatMilliseconds(entry.latency_ms)}</td>
    </tr>
  );
}

function formatTokens(count: number | null): string {
  return count === null ? "–" : formatCount(count);
}
