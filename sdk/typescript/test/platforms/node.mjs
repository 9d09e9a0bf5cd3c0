/** Runs the checks of capabilities in Node, and prints one line of JSON for each. */

import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import WebSocket from "ws";
import { nodeStorage } from "@svc/client";
import { runCapabilities } from "../capabilities.mjs";
import { chatWithHook } from "./hooks.mjs";

const { TEST_GATEWAY, TEST_KEY, TEST_FAULTS, TEST_REGISTRY, TEST_PUBLIC_KEY, TEST_CLIP } = process.env;
const newFolder = () => mkdtempSync(join(tmpdir(), "svc-sdk-"));

await runCapabilities(
  {
    gatewayUrl: TEST_GATEWAY,
    key: TEST_KEY,
    faults: TEST_FAULTS,
    registryUrl: TEST_REGISTRY,
    publicKey: TEST_PUBLIC_KEY,
    clip: new Uint8Array(readFileSync(TEST_CLIP)),
    options: { WebSocket },
    makeStorage: async () => nodeStorage(newFolder()),
    hooks: chatWithHook,
  },
  (line) => console.log(JSON.stringify(line)),
);
