/** The gateway and the fake provider of the end-to-end tests, which `make sdk` starts. */

import { Client } from "@svc/client";

export const { TEST_GATEWAY: gatewayUrl, TEST_KEY: key, TEST_FAULTS: faults } = process.env;
export const skip = gatewayUrl ? false : "no gateway: run `make sdk`";
export const WEATHER = {
  name: "get_weather",
  parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } }, required: ["city"] },
};

export function client(options = {}) {
  return new Client({ gatewayUrl, apiKey: key, retries: 0, timeoutMs: 20_000, ...options });
}

/** Make the provider respond to the next requests with these scripts of tests/typescript_sdk/faults.py. */
export async function play(...names) {
  await fetch(`${faults}/forget`, { method: "POST" });
  await fetch(`${faults}/play`, { method: "POST", body: JSON.stringify(names) });
}

/** Return the requests that the provider has received. */
export async function received() {
  const list = await (await fetch(faults)).json();
  return list.map((each) => ({ ...each, json: () => JSON.parse(each.body) }));
}

/** Wait until a condition holds. */
export async function until(condition, what) {
  const end = Date.now() + 20_000;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`${what} did not happen in 20 s`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
