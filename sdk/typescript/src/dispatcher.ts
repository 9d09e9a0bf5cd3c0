/** Lets the `fetch` of Node wait longer than its own limit. */

/** How long the `fetch` of Node waits for the head of a response, and for each part of its body. */
const NODE_TIMEOUT_MS = 300_000;

interface Dispatcher {
  dispatch: (options: object, handler: object) => boolean;
}

/**
 * Return the `dispatcher` of a request that turns the limits of Node's `fetch` off, or undefined if it needs none.
 *
 * The dispatcher uses the program's own one, such as that of a proxy.
 */
export function dispatcherFor(timeoutMs: number): Dispatcher | undefined {
  const versions = (globalThis as { process?: { versions?: { undici?: string } } }).process?.versions;
  if (timeoutMs <= NODE_TIMEOUT_MS || !versions?.undici) return undefined;
  return {
    dispatch(options, handler) {
      // undici 8, and some 7, keep the dispatcher for the handlers of version 1 apart.
      const globals = globalThis as unknown as Record<symbol, Dispatcher | undefined>;
      const current = "onRequestStart" in handler ? globals[Symbol.for("undici.globalDispatcher.2")] : undefined;
      const dispatcher = current ?? globals[Symbol.for("undici.globalDispatcher.1")];
      if (!dispatcher) throw new Error("undici has no global dispatcher");
      return dispatcher.dispatch({ ...options, headersTimeout: 0, bodyTimeout: 0 }, handler);
    },
  };
}

/** Return whether an error of `fetch` is one of the limits of Node's `fetch`. */
export function isNodeTimeout(error: unknown): boolean {
  const cause = (error as { cause?: { code?: unknown } | null } | null)?.cause;
  return cause?.code === "UND_ERR_HEADERS_TIMEOUT" || cause?.code === "UND_ERR_BODY_TIMEOUT";
}
