/** Numbers and times as text, in the viewer's time zone. */

const dateTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const integer = new Intl.NumberFormat();
const USD = { style: "currency", currency: "USD", currencyDisplay: "narrowSymbol" } as const;
const usd = new Intl.NumberFormat(undefined, USD);
/** For amounts below a cent. */
const smallUsd = new Intl.NumberFormat(undefined, { ...USD, minimumSignificantDigits: 2, maximumSignificantDigits: 2 });
/** The ledger keeps nine decimals. */
const exactUsd = new Intl.NumberFormat(undefined, { ...USD, minimumFractionDigits: 0, maximumFractionDigits: 9 });
const decimals = [0, 1, 2].map((digits) => (
  new Intl.NumberFormat(undefined, { minimumFractionDigits: digits, maximumFractionDigits: digits })
));
const percents = [0, 1].map((digits) => (
  new Intl.NumberFormat(undefined, { style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits })
));

const timeOfDay = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const dayAndTime = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" });

/** Formats a time for a table: without the date if it is today. */
export function formatShortTime(isoTime: string): string {
  const time = new Date(isoTime);
  if (Number.isNaN(time.getTime())) return isoTime;
  return (time.toDateString() === new Date().toDateString() ? timeOfDay : dayAndTime).format(time);
}

export function formatTime(isoTime: string): string {
  const time = new Date(isoTime);
  return Number.isNaN(time.getTime()) ? isoTime : dateTime.format(time);
}

/** The name of the viewer's time zone, such as `Europe/Berlin`. */
export const TIME_ZONE = dateTime.resolvedOptions().timeZone;

export function formatCount(value: number): string {
  return Math.abs(value) < 100_000 ? integer.format(value) : compact.format(value);
}

/** Formats the cost of requests: no requests cost nothing, and requests of models without a price an unknown amount. */
export function formatCost({ requests, cost_usd }: { requests: number; cost_usd: number | null }): string {
  return formatUsd(requests === 0 ? 0 : cost_usd);
}

/** Formats an amount in USD. `null` means unknown, which is not 0. */
export function formatUsd(value: number | null | undefined): string {
  if (value === null || value === undefined) return "unknown";
  return (value !== 0 && Math.abs(value) < 0.01 ? smallUsd : usd).format(value);
}

/** Formats an amount in USD with all digits of the ledger. */
export function formatExactUsd(value: number): string {
  return exactUsd.format(value);
}

/** Formats a share from 0 to 1. */
export function formatPercent(share: number, digits: 0 | 1 = 0): string {
  return percents[digits]?.format(share) ?? "";
}

export function formatMilliseconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  return value < 1000 ? `${formatDecimal(value, 0)} ms` : `${formatDecimal(value / 1000, value < 10_000 ? 2 : 1)} s`;
}

export function formatBytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let amount = value;
  let unit = 0;
  while (amount >= 1024 && unit < units.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${formatDecimal(amount, unit === 0 ? 0 : 1)} ${units[unit] ?? ""}`;
}

function formatDecimal(value: number, digits: 0 | 1 | 2): string {
  return decimals[digits]?.format(value) ?? "";
}
