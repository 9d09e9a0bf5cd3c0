/** The tests that run in Hermes. The host lists them, and runs one after the other. */

import { expose } from "./globals.js";
import { tests } from "./assert.js";
import { configure, given } from "./gateway.js";
import { runCapabilities } from "./capabilities.mjs";
import "./chat.js";
import "./calls.js";
import "./speech.js";
import "./bundles.js";
import "./hooks.js";
import { chatWithHook } from "./render.js";
import { memoryStorage, verifyEd25519 } from "./storage.js";

expose("list", (options) => {
  configure(options);
  return tests.map(({ name }) => name);
});
expose("run", (index) => tests[index].run().then(() => null));
expose("capabilities", async () => {
  const clip = new Uint8Array(await (await fetch(given.clipUrl)).arrayBuffer());
  const { gatewayUrl, key, faults, registry: registryUrl, publicKey } = given;
  const platform = { options: { bundles: { verifyEd25519 } }, makeStorage: async () => memoryStorage(), hooks: chatWithHook };
  return runCapabilities({ gatewayUrl, key, faults, registryUrl, publicKey, clip, ...platform });
});
