/** When a request is sent again, and after which delay. */

const BACKOFF_SECONDS = 0.5;
const MAX_BACKOFF_SECONDS = 8;
const RETRY_AFTER_JITTER_SECONDS = 0.25;
/** A request is not sent again if `Retry-After` is longer. */
const MAX_RETRY_AFTER_SECONDS = 120;

export type HeaderReader = (name: string) => string | null;

/** Return whether the request may be sent again. `x-should-retry` has precedence over the status. */
export function isRetryable(status: number, header: HeaderReader): boolean {
  const asked = header("x-should-retry")?.toLowerCase();
  if (asked === "true") return true;
  if (asked === "false") return false;
  return status === 408 || status === 409 || status === 429 || status >= 500;
}

/** Return the seconds before the next attempt, or undefined if the server asks for more than 120 s. */
export function retryDelay(attempt: number, header: HeaderReader = () => null, random: () => number = Math.random): number | undefined {
  const retryAfter = parseRetryAfter(header("retry-after-ms"), header("retry-after"));
  if (retryAfter !== undefined) {
    return retryAfter > MAX_RETRY_AFTER_SECONDS ? undefined : retryAfter + random() * RETRY_AFTER_JITTER_SECONDS;
  }
  return Math.min(BACKOFF_SECONDS * 2 ** attempt, MAX_BACKOFF_SECONDS) * (0.5 + 0.5 * random());
}

/** Return the delay in seconds of `retry-after-ms` or `Retry-After` (RFC 9110, section 10.2.3), or undefined. */
export function parseRetryAfter(milliseconds: string | null, value: string | null, now: () => number = Date.now): number | undefined {
  for (const [text, unit] of [
    [milliseconds, 0.001],
    [value, 1],
  ] as const) {
    if (!text) continue;
    let seconds = /^\s*[+-]?(\d+\.?\d*|\.\d+)\s*$/.test(text) ? Number(text) * unit : NaN;
    if (Number.isNaN(seconds) && /GMT\s*$|^\w{3} \w{3} [ \d]\d/.test(text)) {
      seconds = Math.max(0, (Date.parse(/GMT/.test(text) ? text : `${text} GMT`) - now()) / 1000);
    }
    if (seconds >= 0) return seconds;
  }
  return undefined;
}
