/** A `fetch` whose body can be read while it arrives, like that of `expo/fetch`, over the host's `Stream` module. */

import { streams } from "./globals.js";

/** Call `fetch` with a string as body. */
export function streamingFetch(url, { method = "GET", headers = {}, body, signal } = {}) {
  return new Promise((resolve, reject) => {
    const parts = [];
    let end;
    let wake = () => undefined;
    const finish = (error) => {
      end ??= { error };
      if (error) reject(error);
      wake();
    };
    const id = streams.open({ method, url, headers, body }, ([kind, value, fields]) => {
      if (kind === "head") resolve({ status: value, headers: { get: (name) => fields[name.toLowerCase()] ?? null }, body: { getReader: () => ({ read }) } });
      else if (kind === "data") parts.push(Uint8Array.from(atob(value), (character) => character.charCodeAt(0)));
      else finish(kind === "error" ? new TypeError(value) : undefined);
      wake();
    });
    async function read() {
      for (;;) {
        if (parts.length) return { done: false, value: parts.shift() };
        if (end?.error) throw end.error;
        if (end) return { done: true, value: undefined };
        await new Promise((resume) => (wake = resume));
      }
    }
    const abort = () => {
      streams.abort(id);
      finish(Object.assign(new Error("The operation was aborted."), { name: "AbortError" }));
    };
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });
}
