/** Cancellation by the caller's `AbortSignal`, and by timeouts. React Native has no `AbortSignal.any`. */

import { isNodeTimeout } from "./dispatcher.js";

/** Return the error of an aborted signal: its reason, else an `AbortError`. */
export function abortReason(signal: AbortSignal): unknown {
  const reason: unknown = signal.reason;
  if (reason !== undefined) return reason;
  const error = new Error("The operation was aborted.");
  error.name = "AbortError";
  return error;
}

export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw abortReason(signal);
}

/** Wait for work that cannot be cancelled. An abort ends the wait. */
export async function withAbort<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  throwIfAborted(signal);
  if (!signal) return work;
  let stop: (() => void) | undefined;
  const aborted = new Promise<never>((_, reject) => {
    stop = () => reject(abortReason(signal));
    signal.addEventListener("abort", stop, { once: true });
  });
  try {
    return await Promise.race([work, aborted]);
  } finally {
    if (stop) signal.removeEventListener("abort", stop);
  }
}

/** Wait. An abort ends the wait. */
export function sleep(seconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(abortReason(signal));
      return;
    }
    const onAbort = (): void => {
      clearTimeout(timer);
      if (signal) reject(abortReason(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/** Aborts a request if the caller does, or if the server sends nothing for a time. */
export class RequestGuard {
  timedOut = false;
  private readonly controller = new AbortController();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly onAbort = (): void => this.controller.abort(this.outer && abortReason(this.outer));

  constructor(
    private readonly timeoutMs: number,
    private readonly outer: AbortSignal | undefined,
  ) {
    if (outer?.aborted) this.onAbort();
    else outer?.addEventListener("abort", this.onAbort, { once: true });
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Wait for work. Throws the reason of an abort, even if the work ignores the signal. */
  async run<T>(work: Promise<T>): Promise<T> {
    this.timer = setTimeout(() => {
      this.timedOut = true;
      this.controller.abort();
    }, this.timeoutMs);
    let stop: (() => void) | undefined;
    const aborted = new Promise<never>((_, reject) => {
      stop = () => reject(new Error("aborted"));
      if (this.signal.aborted) stop();
      else this.signal.addEventListener("abort", stop, { once: true });
    });
    try {
      return await Promise.race([work, aborted]);
    } catch (error) {
      if (!this.timedOut) throwIfAborted(this.outer);
      if (isNodeTimeout(error)) this.timedOut = true;
      throw error;
    } finally {
      clearTimeout(this.timer);
      if (stop) this.signal.removeEventListener("abort", stop);
    }
  }

  /** Cancel the request, and detach from the caller's signal. */
  release(cancel: boolean): void {
    clearTimeout(this.timer);
    this.outer?.removeEventListener("abort", this.onAbort);
    if (cancel) this.controller.abort();
  }
}
