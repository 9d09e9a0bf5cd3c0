/** The checks of a page in Chromium. tests/typescript_sdk/chromium.py bundles this file, and calls the functions. */

import * as sdk from "@svc/client";
import { runCapabilities } from "../capabilities.mjs";
import { chatWithHook } from "./hooks.mjs";

let count = 0;

globalThis.sdk = sdk;
globalThis.capabilities = async (settings) => {
  const clip = new Uint8Array(await (await fetch("/clip.wav")).arrayBuffer());
  return runCapabilities({
    ...settings,
    clip,
    options: {},
    makeStorage: async () => sdk.opfsStorage(`check-${++count}`),
    microphone: sdk.microphone,
    hooks: chatWithHook,
  });
};
