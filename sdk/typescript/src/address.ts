/**
 * Chooses the gateway that a client calls.
 *
 * Precedence: the client's or stage's own > `init`, `setGatewayUrl` > SVC_GATEWAY_URL > SVC_PLATFORM_URL + /v1 > the
 * default. The default in Node is a running `svc up` with the same SVC_HOME, else the production gateway.
 */

import { InvalidRequest } from "./errors.js";

/** A reserved name (RFC 2606), so that keys are never sent to a third party. Operators replace it in their builds. */
export const PRODUCTION_GATEWAY = "https://api.svc.example/v1";

export type Environment = Readonly<Record<string, string | undefined>>;

/** Return the base URL without a trailing slash. SVC_GATEWAY_URL without `/v1` is used unchanged, with a warning. */
export function resolveGatewayUrl(
  explicit: string | undefined,
  configured: string | undefined,
  environment: Environment,
  warn: (message: string) => void = (message) => console.warn(message),
  fallback: string = PRODUCTION_GATEWAY,
): string {
  if (explicit) return withV1Suffix(explicit);
  if (configured) return configured;
  const fromEnvironment = environment["SVC_GATEWAY_URL"]?.trim();
  if (fromEnvironment) {
    const url = normalizeUrl(fromEnvironment, "SVC_GATEWAY_URL");
    if (!url.endsWith("/v1")) warn("SVC_GATEWAY_URL does not end in /v1. It is used unchanged.");
    return url;
  }
  const platformUrl = environment["SVC_PLATFORM_URL"]?.trim();
  return platformUrl ? withV1Suffix(platformUrl, "SVC_PLATFORM_URL") : fallback;
}

/** Return the URL with the suffix `/v1`. Throws InvalidRequest. */
export function withV1Suffix(url: string, name = "gatewayUrl"): string {
  const normalized = normalizeUrl(url, name);
  return normalized.endsWith("/v1") ? normalized : `${normalized}/v1`;
}

// Not `new URL`, which React Native implements in part.
const URL_PATTERN = /^(https?):\/\/(\[[0-9A-Fa-f:.]+\]|[^\s/:?#@[\]]+)(?::(\d*))?(?:\/[^\s?#@]*)?$/i;

/** Return the URL with a scheme, which defaults to http for local addresses, and without trailing slashes. */
export function normalizeUrl(url: string, name = "gatewayUrl"): string {
  if (typeof url !== "string") throw new InvalidRequest(`${name} is not a string.`, { param: name });
  let text = url.trim().replace(/\/+$/, "");
  const page = (globalThis as { location?: { origin?: string } }).location?.origin;
  // The server of the page is a proxy of the gateway.
  if (/^\/(?!\/)/.test(text) && page?.startsWith("http")) text = page + text;
  else if (!url.includes("://")) text = `${isLocal(text) ? "http" : "https"}://${text}`;
  const match = /^[\x21-\x7e]+$/.test(text) ? URL_PATTERN.exec(text) : null;
  const port = match?.[3] ? Number(match[3]) : 1;
  if (!match || port < 1 || port > 65535) {
    throw new InvalidRequest(`${name} is not an http or https URL such as http://127.0.0.1:3000/v1.`, { param: name });
  }
  return text;
}

function isLocal(text: string): boolean {
  const host = /^(\[[^\]]*\]|[^/:?#]*)/.exec(text)?.[1]?.toLowerCase().replace(/^\[|\]$/g, "") ?? "";
  if (host === "localhost" || host.endsWith(".localhost")) return true;
  if (host.includes(":")) return host === "::1" || host === "::" || /^f[cd]|^fe[89ab]/.test(host);
  const parts = host.split(".").map((part) => (/^\d{1,3}$/.test(part) ? Number(part) : NaN));
  const [a = NaN, b = NaN] = parts;
  if (parts.length !== 4 || parts.some((part) => !(part <= 255))) return false;
  return a === 0 || a === 10 || a === 127 || (a === 172 && b >= 16 && b < 32) || (a === 192 && b === 168) || (a === 169 && b === 254);
}
