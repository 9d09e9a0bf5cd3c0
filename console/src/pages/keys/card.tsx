/** One key in the list: its state, its limits in use, its spend, and its actions. */
import type { KeyUse, ShownKey } from "../../../build/schema";
import { formatCount, formatTime, formatUsd } from "../../components/format";
import { Meter } from "../../components/meter";
import { formatTag } from "../../components/tag";
import { KeyUseLinks } from "./links";

const PERIODS = { day: "today (UTC)", month: "this month (UTC)", total: "in total" };
export type KeyAction = "edit" | "rotate" | "revoke";

export function KeyCard(
  /** Without `onAction`, the key is only shown. */
  { apiKey, use, onAction }: { apiKey: ShownKey; use: KeyUse | null; onAction?: (action: KeyAction) => void },
) {
  return (
    <li class={apiKey.revoked ? "card key-card revoked" : "card key-card"}>
      <div class="key-identity">
        <div class="row">
          <h2 class="key-title">{apiKey.name}</h2>
          <KeyBadge apiKey={apiKey} />
        </div>
        <p class="hint"><code>{apiKey.prefix}…</code> · <code>{apiKey.id}</code></p>
        <Facts apiKey={apiKey} isListed={onAction !== undefined} />
      </div>
      <div class="key-use">
        {use && !apiKey.revoked && <LimitMeters use={use} />}
        <Spend apiKey={apiKey} />
      </div>
      {onAction && !apiKey.revoked && (
        <div class="row key-actions">
          <button type="button" aria-label={`Edit ${apiKey.name}`} onClick={() => onAction("edit")}>Edit</button>
          <button type="button" aria-label={`Rotate ${apiKey.name}`} onClick={() => onAction("rotate")}>Rotate</button>
          <button
            type="button" class="danger" aria-label={`Revoke ${apiKey.name}`} onClick={() => onAction("revoke")}
          >
            Revoke
          </button>
        </div>
      )}
    </li>
  );
}

function isExpired(apiKey: ShownKey): boolean {
  return apiKey.expires !== null && Date.parse(apiKey.expires) <= Date.now();
}

function KeyBadge({ apiKey }: { apiKey: ShownKey }) {
  if (apiKey.revoked) return <span class="badge bad">Revoked</span>;
  if (isExpired(apiKey)) return <span class="badge warning">Expired</span>;
  return <span class="badge good">Active</span>;
}

function Facts({ apiKey, isListed }: { apiKey: ShownKey; isListed: boolean }) {
  const tags = Object.entries(apiKey.tags);
  return (
    <dl class="facts">
      <div><dt>Scopes</dt><dd>{apiKey.scopes.join(", ")}</dd></div>
      <div><dt>Models</dt><dd>{apiKey.models ? apiKey.models.join(", ") : "All"}</dd></div>
      {tags.length > 0 && <div><dt>Tags</dt><dd>{tags.map(([name, value]) => formatTag(name, value)).join(", ")}</dd></div>}
      <div><dt>Last used</dt><dd>{apiKey.last_used ? formatTime(apiKey.last_used) : "Never"}</dd></div>
      {apiKey.revoked && <div><dt>Revoked</dt><dd>{formatTime(apiKey.revoked)}</dd></div>}
      {apiKey.expires && !apiKey.revoked && <div><dt>Expires</dt><dd>{formatTime(apiKey.expires)}</dd></div>}
      {apiKey.old_until && !apiKey.revoked && (
        <div><dt>Previous secret</dt><dd>valid until {formatTime(apiKey.old_until)}</dd></div>
      )}
      {isListed && <div><dt>Use</dt><dd><KeyUseLinks id={apiKey.id} name={apiKey.name} /></dd></div>}
    </dl>
  );
}

function LimitMeters({ use }: { use: KeyUse }) {
  const limits = [
    { label: "Requests a minute", value: use.requests, limit: use.rpm },
    { label: "Tokens a minute", value: use.tokens, limit: use.tpm },
    { label: "Concurrent requests", value: use.running, limit: use.concurrency },
  ];
  if (limits.every(({ limit }) => limit === null)) return <p class="hint">No rate limits</p>;
  return (
    <>
      {limits.map(({ label, value, limit }) => (
        limit !== null && <Meter key={label} label={label} value={value} limit={limit} format={formatCount} />
      ))}
    </>
  );
}

function Spend({ apiKey }: { apiKey: ShownKey }) {
  if (apiKey.budget_usd === null) {
    return <p class="hint spend">Spent {formatUsd(apiKey.spent_usd)} in total, no budget</p>;
  }
  const label = `Spent ${PERIODS[apiKey.budget_period ?? "total"]}`;
  return <Meter label={label} value={apiKey.spent_usd} limit={apiKey.budget_usd} format={formatUsd} />;
}
