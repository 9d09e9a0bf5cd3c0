/**
 * Live speech over a WebSocket: send PCM audio, receive partials and finals.
 *
 * If the connection is lost, the session connects again, and sends the audio of the unfinished utterances again.
 */

import { ASYNC_ITERATOR } from "./async-iterator.js";
import { abortReason, sleep, throwIfAborted, withAbort } from "./abort.js";
import type { WebSocketClass } from "./chat-client.js";
import { errorFromCode, GatewayFailed, InvalidRequest, RateLimited, SvcError, UsageError } from "./errors.js";
import type { HttpSession } from "./http.js";
import { retryDelay } from "./retry.js";

const LIVE_PATH = "/audio/transcriptions/stream";
const BYTES_PER_MS = 32;
const MAX_FRAME_BYTES = 32_000;
/** `feed` waits while more bytes than this are queued in the WebSocket. */
const MAX_BUFFERED_BYTES = 256 * 1024;
/** The audio that is kept for a new connection: one minute. */
const MAX_REPLAY_BYTES = 60_000 * BYTES_PER_MS;
const READY_TIMEOUT_MS = 60_000;
const CLOSE_TIMEOUT_MS = 10_000;
const DRAIN_POLL_SECONDS = 0.02;

export interface LiveOptions {
  /** The speech model. Default: that of the gateway. */
  model?: string | undefined;
  /** A language code such as `en`. Without it, the model decides. */
  language?: string | undefined;
  /** Whether the voice activity detector splits the audio at silence. Default: true. */
  vad?: boolean | undefined;
  /** How often a lost connection is opened again before the session fails. Default: 5. */
  reconnects?: number | undefined;
  /** Ends the session. */
  signal?: AbortSignal | undefined;
}

/** 16-bit little-endian mono samples at 16 kHz. */
export type Pcm = Int16Array | Uint8Array | ArrayBuffer;

/** Audio that arrives over time, such as a microphone. */
export type AudioSource = AsyncIterable<Pcm>;

export interface LiveReady {
  type: "ready";
  sessionId: string;
  model: string;
}
/** The transcript of the utterance so far. If it is stable, later transcripts of the utterance begin with it. */
export interface LivePartial {
  type: "partial";
  text: string;
  isStable: boolean;
  chunkIndex: number;
}
/** The transcript of a finished utterance. It is empty if nobody spoke. */
export interface LiveFinal {
  type: "final";
  text: string;
  durationMs: number;
  chunksProcessed: number;
  words: readonly { word: string; startMs: number; endMs: number }[] | undefined;
}
/** An error of the server. The session goes on. */
export interface LiveError {
  type: "error";
  error: SvcError;
}
export interface LiveReconnecting {
  type: "reconnecting";
  attempt: number;
  delayMs: number;
}
/** The connection is back. `lostMs` is the audio that was too old to be sent again. */
export interface LiveReconnected {
  type: "reconnected";
  lostMs: number;
}
/** The server has closed the session. It is the last event. */
export interface LiveClosed {
  type: "closed";
  reason: string;
}
export type LiveEvent = LiveReady | LivePartial | LiveFinal | LiveError | LiveReconnecting | LiveReconnected | LiveClosed;

type SentItem = Uint8Array | "flush";

interface FinalWaiter {
  resolve: (final: LiveFinal) => void;
  reject: (error: unknown) => void;
}

/** A session of live speech: an async iterator of events. `Client.live` opens it. */
export class LiveSession implements AsyncIterable<LiveEvent> {
  sessionId = "";
  model = "";
  /** Why the server closed the session, such as `client_close` or `idle_timeout`. */
  closeReason: string | undefined;
  private socket: WebSocket | undefined;
  private readonly events: LiveEvent[] = [];
  private wake: (() => void)[] = [];
  private failure: { error: unknown } | undefined;
  private ended = false;
  private closing = false;
  private replay: SentItem[] = [];
  private replayBytes = 0;
  private lostBytes = 0;
  private oddByte: number | undefined;
  private waiters: (FinalWaiter | undefined)[] = [];
  private finalTimer: ReturnType<typeof setTimeout> | undefined;
  private readonly onAbort = (): void => this.fail(this.options.signal && abortReason(this.options.signal));

  private constructor(
    private readonly http: HttpSession,
    private readonly socketClass: WebSocketClass,
    private readonly options: LiveOptions,
  ) {}

  /** Connect, configure the session, and wait until it is ready. */
  static async open(http: HttpSession, socketClass: WebSocketClass | undefined, options: LiveOptions): Promise<LiveSession> {
    const chosen = socketClass ?? (globalThis as { WebSocket?: WebSocketClass }).WebSocket;
    if (!chosen) {
      throw new UsageError("There is no `WebSocket` here. Give the client one, for example of the package `ws`.", { param: "WebSocket" });
    }
    throwIfAborted(options.signal);
    const session = new LiveSession(http, chosen, options);
    options.signal?.addEventListener("abort", session.onAbort, { once: true });
    try {
      await session.connect(true);
    } catch (error) {
      session.fail(error);
      throw error;
    }
    return session;
  }

  /** Send audio of any length. Resolves when the connection can take more. Throws if it takes nothing for `timeoutMs`. */
  async feed(pcm: Pcm): Promise<void> {
    this.checkOpen();
    const bytes = this.alignSamples(toBytes(pcm));
    for (let offset = 0; offset < bytes.length; offset += MAX_FRAME_BYTES) {
      const frame = bytes.slice(offset, offset + MAX_FRAME_BYTES);
      this.remember(frame);
      this.socket?.send(frame);
    }
    let queued = Infinity;
    let progressAt = Date.now();
    while (!this.ended && (!this.socket || (this.socket.bufferedAmount || 0) > MAX_BUFFERED_BYTES)) {
      const nowQueued = this.socket?.bufferedAmount ?? Infinity;
      if (!this.socket || nowQueued < queued) progressAt = Date.now(); // a new connection has limits of its own
      else if (Date.now() - progressAt >= this.http.timeoutMs) throw this.timeOut();
      queued = nowQueued;
      await sleep(DRAIN_POLL_SECONDS, this.options.signal);
    }
  }

  /** Feed audio until the source ends. */
  async pipe(source: AudioSource): Promise<void> {
    for await (const pcm of source) {
      if (this.ended) return;
      await this.feed(pcm);
    }
  }

  /** End the utterance. The iteration yields its final. */
  flush(): void {
    this.sendFlush(undefined);
  }

  /** End the utterance, and return its final. The iteration yields it too. */
  finish(): Promise<LiveFinal> {
    return new Promise((resolve, reject) => {
      try {
        this.sendFlush({ resolve, reject });
      } catch (error) {
        reject(error);
      }
    });
  }

  private sendFlush(waiter: FinalWaiter | undefined): void {
    this.checkOpen();
    this.oddByte = undefined;
    this.waiters.push(waiter);
    this.watch();
    this.replay.push("flush");
    this.socket?.send('{"type":"flush"}');
  }

  /** Discard the utterance. */
  reset(): void {
    this.checkOpen();
    this.oddByte = undefined;
    const kept = this.replay.lastIndexOf("flush") + 1;
    for (const item of this.replay.splice(kept)) this.replayBytes -= item.length;
    this.socket?.send('{"type":"reset"}');
  }

  /** Close the session, and wait for the server. Safe to call twice. */
  async close(): Promise<void> {
    if (this.ended) return;
    this.closing = true;
    if (this.socket) {
      this.socket.send('{"type":"close"}');
      const timer = setTimeout(() => this.end(), CLOSE_TIMEOUT_MS);
      while (!this.isEnded()) await new Promise<void>((resolve) => this.wake.push(resolve));
      clearTimeout(timer);
    }
    this.end();
  }

  private isEnded(): boolean {
    return this.ended;
  }

  /** Return the next event, or undefined at the end. Throws if the connection is lost for good. */
  async next(): Promise<LiveEvent | undefined> {
    for (;;) {
      const event = this.events.shift();
      if (event) return event;
      if (this.failure) throw this.failure.error;
      if (this.ended) return undefined;
      await new Promise<void>((resolve) => this.wake.push(resolve));
    }
  }

  async *[ASYNC_ITERATOR](): AsyncGenerator<LiveEvent, void, undefined> {
    for (let event = await this.next(); event; event = await this.next()) yield event;
  }

  // connection

  private async connect(mayRefreshKey: boolean): Promise<void> {
    const key = await withAbort(this.http.key.get(), this.options.signal);
    const protocols = ["svc.v1", ...(key === undefined ? [] : [`svc.api-key.${key}`])];
    let socket: WebSocket;
    try {
      socket = new this.socketClass(`ws${this.http.baseUrl.slice(4)}${LIVE_PATH}`, protocols);
    } catch {
      // The error of a browser quotes the key.
      throw new InvalidRequest("The WebSocket cannot be opened: the key has characters that are not allowed in a subprotocol.", {
        param: "apiKey",
      });
    }
    socket.binaryType = "arraybuffer";
    try {
      await this.waitUntilReady(socket);
    } catch (error) {
      socket.close();
      if (error !== OPEN_FAILED) throw error;
      throwIfAborted(this.options.signal);
      // A browser hides why the upgrade failed. A request with the same key says it, and gets a new key after a 401.
      const reply = await this.http.open({ method: "GET", path: "/models" }, { signal: this.options.signal });
      reply.close();
      if (mayRefreshKey && (await this.http.key.get()) !== key) return this.connect(false);
      throw new GatewayFailed(`The gateway at ${this.http.baseUrl} does not accept a WebSocket for live speech.`);
    }
    this.socket = socket;
  }

  private waitUntilReady(socket: WebSocket): Promise<void> {
    return new Promise((resolve, reject) => {
      let isOpen = false;
      let isReady = false;
      const timer = setTimeout(() => reject(new GatewayFailed(`The gateway at ${this.http.baseUrl} timed out.`)), READY_TIMEOUT_MS);
      const { signal } = this.options;
      const onAbort = (): void => {
        if (signal) reject(abortReason(signal));
      };
      const settle = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", onAbort);
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      socket.onopen = () => {
        isOpen = true;
        const { model, language, vad } = this.options;
        socket.send(JSON.stringify({ type: "config", model, language, vad }));
      };
      socket.onerror = () => undefined; // a close follows
      socket.onclose = () => {
        settle();
        if (isReady) this.onClose(socket);
        else reject(isOpen ? new GatewayFailed("The gateway closed the session before it was ready.") : OPEN_FAILED);
      };
      socket.onmessage = ({ data }: MessageEvent<unknown>) => {
        let event: LiveEvent | undefined;
        try {
          event = decodeEvent(data);
        } catch (error) {
          if (isReady) this.fail(error);
          else reject(error);
          return;
        }
        if (!event) return;
        if (!isReady && event.type === "error") {
          reject(event.error);
        } else {
          if (event.type === "ready") {
            isReady = true;
            settle();
            resolve();
          }
          this.handle(event);
        }
      };
    });
  }

  private onClose(socket: WebSocket): void {
    if (this.socket !== socket || this.ended) return;
    this.socket = undefined;
    if (this.closing || this.closeReason !== undefined) this.end();
    else void this.reconnect();
  }

  private async reconnect(): Promise<void> {
    const limit = this.options.reconnects ?? 5;
    let error: unknown = new GatewayFailed("The live session was interrupted.");
    for (let attempt = 0; attempt < limit; attempt++) {
      const delay = retryDelay(attempt) ?? 0;
      this.push({ type: "reconnecting", attempt: attempt + 1, delayMs: Math.round(delay * 1000) });
      try {
        await sleep(delay, this.options.signal);
        if (this.ended) return;
        if (this.closing) break;
        await this.connect(true);
        this.sendAgain();
        return;
      } catch (caught) {
        error = caught;
        if (!(caught instanceof GatewayFailed || caught instanceof RateLimited)) break;
      }
    }
    if (this.closing) this.end();
    else this.fail(error);
  }

  private sendAgain(): void {
    const { socket } = this;
    if (this.isEnded()) {
      socket?.close();
      return;
    }
    for (const item of this.replay) socket?.send(item === "flush" ? '{"type":"flush"}' : (item));
    this.push({ type: "reconnected", lostMs: Math.round(this.lostBytes / BYTES_PER_MS) });
    this.lostBytes = 0;
  }

  /** End the session if the server owes a final and sends nothing. */
  private watch(): void {
    clearTimeout(this.finalTimer);
    if (!this.waiters.length || this.ended) return;
    this.finalTimer = setTimeout(() => this.timeOut(), this.http.timeoutMs);
  }

  /** End the session, and return the error. */
  private timeOut(): GatewayFailed {
    const error = new GatewayFailed(`The gateway at ${this.http.baseUrl} timed out.`);
    this.fail(error);
    return error;
  }

  private handle(event: LiveEvent): void {
    if (event.type === "ready") {
      this.sessionId = event.sessionId;
      this.model = event.model;
    } else if (event.type === "final") {
      const end = this.replay.indexOf("flush") + 1;
      for (const item of this.replay.splice(0, end)) if (item !== "flush") this.replayBytes -= item.length;
      this.waiters.shift()?.resolve(event);
    } else if (event.type === "closed") {
      this.closeReason = event.reason;
    }
    this.watch();
    this.push(event);
  }

  /** Queue an event. A partial replaces one that nobody has read yet. */
  private push(event: LiveEvent): void {
    if (event.type === "partial" && this.events[this.events.length - 1]?.type === "partial") this.events.pop();
    this.events.push(event);
    this.notify();
  }

  private notify(): void {
    const waiting = this.wake;
    this.wake = [];
    for (const wake of waiting) wake();
  }

  private fail(error: unknown): void {
    if (this.ended) return;
    this.failure = { error };
    this.end();
  }

  private end(): void {
    if (this.ended) return;
    this.ended = true;
    clearTimeout(this.finalTimer);
    this.options.signal?.removeEventListener("abort", this.onAbort);
    this.socket?.close();
    this.socket = undefined;
    this.replay = [];
    const error = this.failure?.error ?? new GatewayFailed("The gateway closed the session before the final.");
    for (const waiter of this.waiters.splice(0)) waiter?.reject(error);
    this.notify();
  }

  // audio

  private checkOpen(): void {
    if (this.failure) throw this.failure.error;
    if (this.ended || this.closing) throw new GatewayFailed(`The session is closed${this.closeReason ? ` (${this.closeReason})` : ""}.`);
  }

  /** Keep a byte that is half a sample for the next call, so that dropped audio never splits a sample. */
  private alignSamples(bytes: Uint8Array): Uint8Array {
    if (this.oddByte === undefined && bytes.length % 2 === 0) return bytes;
    const joined = this.oddByte === undefined ? bytes : Uint8Array.of(this.oddByte, ...bytes);
    this.oddByte = joined.length % 2 ? joined[joined.length - 1] : undefined;
    return joined.subarray(0, joined.length & ~1);
  }

  private remember(frame: Uint8Array): void {
    this.replay.push(frame);
    this.replayBytes += frame.length;
    while (this.replayBytes > MAX_REPLAY_BYTES) {
      const oldest = this.replay.findIndex((item) => item !== "flush");
      const [dropped] = this.replay.splice(oldest, 1);
      const size = dropped?.length ?? 0;
      this.replayBytes -= size;
      this.lostBytes += this.socket ? 0 : size;
    }
  }
}

/** The upgrade to a WebSocket failed. */
const OPEN_FAILED: unknown = Symbol("open failed");

/** Return the bytes of audio. Throws InvalidRequest for other values. */
export function toBytes(pcm: Pcm): Uint8Array {
  // Floats and 32-bit integers would be read as noise.
  const sampleBytes = (pcm as { BYTES_PER_ELEMENT?: number } | undefined)?.BYTES_PER_ELEMENT ?? 1;
  if (ArrayBuffer.isView(pcm) && sampleBytes <= 2) return new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength);
  if (pcm instanceof ArrayBuffer) return new Uint8Array(pcm);
  throw new InvalidRequest("The audio is not an Int16Array, Uint8Array or ArrayBuffer.", { param: "pcm" });
}

/** Return the typed event of a message, or undefined for a type that is unknown. */
function decodeEvent(data: unknown): LiveEvent | undefined {
  let raw: Record<string, unknown>;
  try {
    raw = JSON.parse(data as string) as Record<string, unknown>;
  } catch (cause) {
    throw new GatewayFailed("The gateway sent a message that is not a live speech event.", { cause });
  }
  const text = (name: string): string => (typeof raw[name] === "string" ? raw[name] : "");
  const number = (name: string): number => (typeof raw[name] === "number" ? raw[name] : 0);
  switch (raw["type"]) {
    case "ready":
      return { type: "ready", sessionId: text("session_id"), model: text("model") };
    case "partial":
      return { type: "partial", text: text("text"), isStable: raw["is_stable"] === true, chunkIndex: number("chunk_index") };
    case "final": {
      const words = raw["words"] as { word: string; start_ms: number; end_ms: number }[] | undefined;
      return {
        type: "final",
        text: text("text"),
        durationMs: number("duration_ms"),
        chunksProcessed: number("chunks_processed"),
        words: words?.map((each) => ({ word: each.word, startMs: each.start_ms, endMs: each.end_ms })),
      };
    }
    case "error":
      return { type: "error", error: errorFromCode(text("code"), text("message")) };
    case "closed":
      return { type: "closed", reason: text("reason") };
  }
  return undefined;
}
