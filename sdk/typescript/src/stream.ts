/** A streamed response, as an async iterator that throws if the stream is interrupted. */

import { ASYNC_ITERATOR } from "./async-iterator.js";
import { abortReason } from "./abort.js";
import { ProviderFailed, SvcError, UsageError } from "./errors.js";
import { notA, type Reply } from "./http.js";

/** Return the error of a stream that has ended without its last event: it was interrupted, or was none. */
export function incompleteStream(reply: Reply): SvcError {
  const isOther = /^(text\/html|application\/json)\b/i.test(reply.header("content-type") ?? "");
  return isOther ? notA("a stream of events", reply.requestId) : new ProviderFailed("The response was interrupted.", { requestId: reply.requestId });
}

/** The events of a response. The request is sent when the iteration starts. `break` cancels the response. */
export abstract class EventStream<Event> implements AsyncIterable<Event> {
  requestId: string | undefined;
  private readonly controller = new AbortController();
  private reply: Reply | undefined;
  private started = false;
  private complete = false;
  private failure: { error: unknown } | undefined;

  constructor(
    private readonly start: (signal: AbortSignal) => Promise<Reply>,
    private readonly signal: AbortSignal | undefined,
  ) {}

  [ASYNC_ITERATOR](): AsyncIterator<Event> {
    return this.iterate();
  }

  /** Cancel the response. Safe to call twice. */
  close(): void {
    this.controller.abort();
    this.reply?.close();
  }

  /** Decode the response. Throws unless it is complete. */
  protected abstract decode(reply: Reply): AsyncGenerator<Event, void, undefined>;

  protected async readToEnd(): Promise<void> {
    if (this.failure) throw this.failure.error;
    if (this.complete) return;
    const iterator = this.iterate();
    while (!(await iterator.next()).done);
  }

  private async *iterate(): AsyncGenerator<Event, void, undefined> {
    if (this.started) throw new UsageError("A stream can be iterated once.");
    this.started = true;
    const { signal } = this;
    const onAbort = (): void => this.controller.abort(signal && abortReason(signal));
    if (signal?.aborted) onAbort();
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      this.reply = await this.start(this.controller.signal);
      this.requestId = this.reply.requestId;
      yield* this.decode(this.reply);
      this.complete = true;
      void this.reply.drain();
    } catch (error) {
      if (error instanceof SvcError) error.requestId ??= this.requestId;
      this.failure = { error };
      throw error;
    } finally {
      signal?.removeEventListener("abort", onAbort);
      if (!this.complete) {
        this.failure ??= { error: new UsageError("The stream was closed before its end.") };
        this.close();
      }
    }
  }
}
