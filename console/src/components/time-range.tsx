/** The time range of a page. It is in the query: `range`, or `since` and `until` for a custom range. */
import { navigate, addressWith, useAddress } from "../router";
import { Field } from "./field";
import { TIME_ZONE } from "./format";

const RANGES = { "15m": "Last 15 minutes", "1h": "Last hour", "24h": "Last 24 hours", "7d": "Last 7 days", "30d": "Last 30 days" };
type RelativeRange = keyof typeof RANGES;
const DEFAULT_RANGE: RelativeRange = "24h";
const UNIT_SECONDS: Record<string, number> = { m: 60, h: 3600, d: 86_400 };

export interface TimeRange {
  /** The parameters of the API. `until` is empty if the range ends now. */
  since: string;
  until: string;
  seconds: number;
}

function isRelative(text: string | null): text is RelativeRange {
  return text !== null && text in RANGES;
}

export function useTimeRange(): TimeRange {
  const { searchParams } = useAddress();
  const range = searchParams.get("range");
  if (range !== "custom") {
    const since = isRelative(range) ? range : DEFAULT_RANGE;
    return { since, until: "", seconds: Number.parseInt(since, 10) * (UNIT_SECONDS[since.slice(-1)] ?? 0) };
  }
  const since = searchParams.get("since") ?? "";
  const until = searchParams.get("until") ?? "";
  const start = since ? Date.parse(since) : Date.now() - 86_400_000;
  return { since, until, seconds: Math.max(0, ((until ? Date.parse(until) : Date.now()) - start) / 1000) || 86_400 };
}

/** Formats a time for `<input type="datetime-local">`, which has no time zone. */
function toLocalInput(isoTime: string): string {
  const time = new Date(isoTime);
  if (Number.isNaN(time.getTime())) return "";
  return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function fromLocalInput(text: string): string {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? "" : time.toISOString().slice(0, 19) + "Z";
}

export function TimeRangeField() {
  const { searchParams } = useAddress();
  const range = searchParams.get("range");
  const isCustom = range === "custom";
  const since = searchParams.get("since") ?? "";
  const until = searchParams.get("until") ?? "";
  const choose = (next: string): void => {
    const start = new Date(Date.now() - 86_400_000).toISOString().slice(0, 16) + ":00Z";
    navigate(addressWith(
      next === "custom" ? { range: next, since: start } : { range: next === DEFAULT_RANGE ? "" : next, since: "", until: "" },
    ), { replace: true });
  };
  return (
    <>
      <Field name="range" label="Time range">
        {(attributes) => (
          <select
            {...attributes} value={isCustom ? "custom" : isRelative(range) ? range : DEFAULT_RANGE}
            onChange={(event) => choose(event.currentTarget.value)}
          >
            {Object.entries(RANGES).map(([value, label]) => <option key={value} value={value}>{label}</option>)}
            <option value="custom">Custom</option>
          </select>
        )}
      </Field>
      {isCustom && <TimeField name="since" label="From" value={since} />}
      {isCustom && <TimeField name="until" label="Until" value={until} />}
    </>
  );
}

function TimeField({ name, label, value }: { name: "since" | "until"; label: string; value: string }) {
  return (
    <Field name={name} label={label}>
      {(attributes) => (
        <input
          {...attributes} type="datetime-local" value={toLocalInput(value)}
          onChange={(event) => navigate(addressWith({ [name]: fromLocalInput(event.currentTarget.value) }), { replace: true })}
        />
      )}
    </Field>
  );
}

export function TimeZoneHint() {
  return <p class="hint">Times are in your time zone, {TIME_ZONE}.</p>;
}
