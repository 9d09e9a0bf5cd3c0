/** The client of the gateway. The app has no key of its own: a server of yours makes one for each user. */

import { Client } from "@svc/client";
import { fetch } from "expo/fetch";

const KEY_SERVER = process.env.EXPO_PUBLIC_KEY_SERVER;
const GATEWAY_URL = process.env.EXPO_PUBLIC_GATEWAY_URL;

/** Return a key that ends soon. Replace this by a request with the user's session in your own API. */
async function fetchKey(): Promise<string> {
  if (!KEY_SERVER) throw new Error("Set EXPO_PUBLIC_KEY_SERVER to the address of examples/sdk/key-server.mjs.");
  const response = await fetch(`${KEY_SERVER}/key`, { method: "POST" });
  if (!response.ok) throw new Error(`The key server responded with ${response.status}.`);
  const { key } = (await response.json()) as { key: string };
  return key;
}

/** Reads a stream while it arrives, with the `fetch` of Expo. */
export const client = new Client({ gatewayUrl: GATEWAY_URL, apiKey: fetchKey, fetch: fetch as unknown as typeof globalThis.fetch });
