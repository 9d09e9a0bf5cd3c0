/** The configuration that all clients of a program share: `init`, `setGatewayUrl`, `setApiKey`. */

import { normalizeUrl, withV1Suffix } from "./address.js";
import { InvalidRequest } from "./errors.js";

/** A key, or a function that returns one. The function is called again, once, after a 401. */
export type ApiKey = string | (() => string | Promise<string>);

export interface InitOptions {
  /** The key for the gateway. Apps use a function that fetches an ephemeral key from the app's own server. */
  apiKey?: ApiKey | undefined;
  /** The URL of the gateway. `/v1` is added if it is missing. */
  gatewayUrl?: string | undefined;
  /** The URL of a platform's backend. `/v1` is added if it is missing. `gatewayUrl` takes precedence. */
  platformUrl?: string | undefined;
  /** The URL of the registry. */
  registryUrl?: string | undefined;
}

interface Config {
  apiKey: ApiKey | undefined;
  gatewayUrl: string | undefined;
  registryUrl: string | undefined;
}

let config: Config = { apiKey: undefined, gatewayUrl: undefined, registryUrl: undefined };

export function currentConfig(): Readonly<Config> {
  return config;
}

/** Configure clients that are created later. Values that are missing come from the environment. */
export function init(options: InitOptions = {}): void {
  checkOptions(options, ["apiKey", "gatewayUrl", "platformUrl", "registryUrl"], "init");
  const { gatewayUrl, platformUrl, registryUrl } = options;
  let gateway: string | undefined;
  if (gatewayUrl) gateway = withV1Suffix(gatewayUrl);
  else if (platformUrl) gateway = withV1Suffix(platformUrl, "platformUrl");
  config = {
    apiKey: normalizeApiKey(options.apiKey),
    gatewayUrl: gateway,
    registryUrl: registryUrl ? normalizeUrl(registryUrl, "registryUrl") : undefined,
  };
}

/** Set the URL of the gateway. `/v1` is added if it is missing. */
export function setGatewayUrl(url: string): void {
  config = { ...config, gatewayUrl: withV1Suffix(url) };
}

/** Set the key for the gateway, or the function that returns it. */
export function setApiKey(key: ApiKey): void {
  config = { ...config, apiKey: normalizeApiKey(key) };
}

/** Throw InvalidRequest for options that are not an object, or have a name that is unknown. */
export function checkOptions(options: object, known: readonly string[], place: string): void {
  const keys = typeof options === "object" ? Object.keys(options) : [typeof options as string];
  const unknown = keys.find((key) => !known.includes(key));
  if (unknown !== undefined) throw new InvalidRequest(`\`${place}\` takes an object with ${known.join(", ")}, and no ${unknown}.`, { param: unknown });
}

/** Return the key without surrounding whitespace, or undefined if it is empty. Functions are returned unchanged. */
export function normalizeApiKey<T extends ApiKey>(key: T | null | undefined): T | undefined {
  if (typeof key === "function") return key;
  if (key !== undefined && key !== null && typeof key !== "string") {
    throw new InvalidRequest("The API key is neither a string nor a function.", { param: "apiKey" });
  }
  const text = (key ?? "").trim();
  if (!text) return undefined;
  if (!/^[\x21-\x7e]+$/.test(text)) {
    throw new InvalidRequest("The API key has characters that are not allowed in a header.", { param: "apiKey" });
  }
  return text as T;
}
