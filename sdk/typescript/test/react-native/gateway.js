/** The gateway and the provider of the tests, whose addresses the host gives. */

import { Client } from "@svc/client";

export const given = {};

export function configure(options) {
  Object.assign(given, options);
}

export function client(options = {}) {
  return new Client({ gatewayUrl: given.gatewayUrl, apiKey: given.key, retries: 0, timeoutMs: 60_000, ...options });
}

/** Make the provider respond to the next requests with these scripts of tests/typescript_sdk/faults.py. */
export async function play(...names) {
  await fetch(`${given.faults}/forget`, { method: "POST" });
  await fetch(`${given.faults}/play`, { method: "POST", body: JSON.stringify(names) });
}

/** Return the requests that the provider has received. */
export async function received() {
  return (await fetch(given.faults)).json();
}
