/** Streams text with XMLHttpRequest's progress, where `fetch` cannot stream: React Native without `expo/fetch`. */

import type { RawReply } from "./http.js";

/** Return whether the global `fetch` has a body that can be read while it arrives. */
export function hasStreamingFetch(): boolean {
  const globals = globalThis as { Response?: typeof Response; XMLHttpRequest?: unknown };
  if (typeof globals.XMLHttpRequest !== "function") return true;
  return typeof globals.Response === "function" && "body" in (globals.Response.prototype as object);
}

/** Return whether this is React Native. */
export function isReactNative(): boolean {
  return (globalThis as { navigator?: { product?: string } }).navigator?.product === "ReactNative";
}

/** Send a request. Resolves when the head of the response is there. */
export function sendWithXhr(
  method: string,
  url: string,
  headers: Record<string, string>,
  body: string | FormData | undefined,
  signal: AbortSignal,
): Promise<RawReply> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    let position = 0;
    let failure: Error | undefined;
    let isComplete = false;
    let wake: (() => void) | undefined;
    const notify = (): void => {
      wake?.();
      wake = undefined;
    };
    const fail = (message: string): void => {
      failure = new Error(message);
      reject(failure);
      notify();
    };
    const read = async (): Promise<string | undefined> => {
      for (;;) {
        const text = request.responseText;
        // A surrogate pair may be split between two events.
        const last = text.charCodeAt(text.length - 1);
        const end = !isComplete && last >= 0xd800 && last < 0xdc00 ? text.length - 1 : text.length;
        if (failure) throw failure;
        if (end > position) {
          const part = text.slice(position, end);
          position = end;
          return part;
        }
        if (isComplete) return undefined;
        await new Promise<void>((resume) => (wake = resume));
      }
    };
    request.open(method, url, true);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.onreadystatechange = () => {
      if (request.readyState >= 2 && request.status > 0) {
        resolve({ status: request.status, header: (name) => request.getResponseHeader(name), read });
      }
      notify();
    };
    request.onprogress = notify;
    request.onload = () => {
      isComplete = true;
      notify();
    };
    request.onerror = () => fail("the connection failed");
    request.onabort = () => fail("the request was aborted");
    signal.addEventListener("abort", () => request.abort(), { once: true });
    if (signal.aborted) fail("the request was aborted");
    else request.send(body);
  });
}
