/** HTTP requests to one server: keys, retries, timeouts, and errors as exceptions. */

import { RequestGuard, sleep, throwIfAborted, withAbort } from "./abort.js";
import { PRODUCTION_GATEWAY } from "./address.js";
import { normalizeApiKey, type ApiKey } from "./config.js";
import { dispatcherFor } from "./dispatcher.js";
import { errorFromResponse, GatewayFailed, InvalidRequest, RegistryUnreachable, SvcError } from "./errors.js";
import { isRetryable, retryDelay } from "./retry.js";
import { Utf8Decoder } from "./text.js";
import { hasStreamingFetch, isReactNative, sendWithXhr } from "./xhr.js";

/** A key that is fetched when it is needed, and again when the server has rejected it. */
export interface KeySource {
  readonly canRefresh: boolean;
  get: () => Promise<string | undefined>;
  /** Forget a key that was rejected, unless another request has replaced it already. */
  reject: (key: string | undefined) => Promise<void>;
}

/** Return the source of a key. Only functions know the key, so that `console.log(client)` does not print it. */
export function createKeySource(source: ApiKey | undefined): KeySource {
  let current: Promise<string | undefined> | undefined;
  const load = async (): Promise<string | undefined> => normalizeApiKey(typeof source === "function" ? await source() : source);
  return {
    canRefresh: typeof source === "function",
    get() {
      if (current === undefined) {
        const pending = load();
        current = pending;
        pending.catch(() => {
          if (current === pending) current = undefined;
        });
      }
      return current;
    },
    async reject(key) {
      const pending = current;
      if (pending !== undefined && (await pending.catch(() => undefined)) === key && current === pending) current = undefined;
    },
  };
}

export interface RequestOptions {
  /** Cancels the request. The call throws the signal's reason. */
  signal?: AbortSignal | undefined;
  /** The longest wait for a byte from the server, in milliseconds. */
  timeoutMs?: number | undefined;
}

export interface HttpRequest {
  method: string;
  path: string;
  headers?: Record<string, string>;
  body?: string | FormData | Uint8Array;
  /** Whether the body of the response is text that is read while it arrives. */
  isTextStream?: boolean;
}

/** The response of `fetch` or of XMLHttpRequest. */
export interface RawReply {
  status: number;
  header: (name: string) => string | null;
  /** Return the next part of the body, or undefined at its end. Rejects if the body is interrupted. */
  read: () => Promise<Uint8Array | string | undefined>;
}

/** Throw InvalidRequest for a time that no timer can have. */
export function checkTimeout(timeoutMs: number | undefined): void {
  if (timeoutMs === undefined || (timeoutMs > 0 && timeoutMs < 2 ** 31)) return;
  throw new InvalidRequest("`timeoutMs` is not above 0 and below 2147483648.", { param: "timeoutMs" });
}

interface SessionOptions {
  retries: number;
  timeoutMs: number;
  fetch: typeof fetch | undefined;
  serverKind?: "gateway" | "registry";
}

const MAX_DRAIN_MS = 1000;

/** A successful response whose body is read in parts. */
export class Reply {
  readonly requestId: string | undefined;
  private readonly decoder = new Utf8Decoder();

  constructor(
    private readonly raw: RawReply,
    private readonly guard: RequestGuard,
    private readonly toError: (error: unknown, what: string) => unknown,
  ) {
    this.requestId = raw.header("x-request-id") ?? undefined;
  }

  get status(): number {
    return this.raw.status;
  }

  header(name: string): string | null {
    return this.raw.header(name);
  }

  /** Return the next bytes, or undefined at the end. */
  async read(): Promise<Uint8Array | string | undefined> {
    try {
      const chunk = await this.guard.run(this.raw.read());
      if (chunk === undefined) this.guard.release(false);
      return chunk;
    } catch (error) {
      this.close();
      const failure = this.toError(error, "was interrupted");
      if (failure instanceof SvcError) failure.requestId ??= this.requestId;
      throw failure;
    }
  }

  /** Return the next text, or undefined at the end. */
  async readText(): Promise<string | undefined> {
    const chunk = await this.read();
    if (typeof chunk === "string") return chunk;
    try {
      if (chunk !== undefined) return this.decoder.decode(chunk);
      this.decoder.finish();
      return undefined;
    } catch (error) {
      this.close();
      throw new GatewayFailed("The response is not UTF-8.", { cause: error, requestId: this.requestId });
    }
  }

  async text(): Promise<string> {
    let text = "";
    for (let part = await this.readText(); part !== undefined; part = await this.readText()) text += part;
    return text;
  }

  /** Return the JSON value of the body. `what` names it in the error. */
  async json(what: string): Promise<unknown> {
    const text = await this.text();
    try {
      return JSON.parse(text);
    } catch (error) {
      throw notA(what, this.requestId, error);
    }
  }

  async bytes(): Promise<Uint8Array<ArrayBuffer>> {
    const parts: Uint8Array[] = [];
    for (let part = await this.read(); part !== undefined; part = await this.read()) {
      parts.push(typeof part === "string" ? new TextEncoder().encode(part) : part);
    }
    const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let offset = 0;
    for (const part of parts) {
      whole.set(part, offset);
      offset += part.length;
    }
    return whole;
  }

  /** Read the rest of a complete response, so that its connection is used again. After a second, cancel it. */
  async drain(): Promise<void> {
    const timer = setTimeout(() => this.close(), MAX_DRAIN_MS);
    try {
      while ((await this.read()) !== undefined);
    } catch {
      // The response was complete before.
    } finally {
      clearTimeout(timer);
    }
  }

  /** Cancel the rest of the response. Safe to call twice. */
  close(): void {
    this.guard.release(true);
  }
}

/** Return the error for a response that is not what the caller asked for. */
export function notA(what: string, requestId: string | undefined, cause?: unknown): GatewayFailed {
  return new GatewayFailed(`The response is not ${what}. Check that the address is a gateway's.`, { requestId, cause });
}

const CANNOT_REACH = "cannot be reached";

export class HttpSession {
  constructor(
    readonly baseUrl: string,
    readonly key: KeySource,
    private readonly options: SessionOptions,
  ) {}

  /** The longest wait for a byte from the server, in milliseconds. */
  get timeoutMs(): number {
    return this.options.timeoutMs;
  }

  /** Whether the bytes of a body can be read while they arrive. */
  get canStream(): boolean {
    return this.options.fetch !== undefined || hasStreamingFetch();
  }

  /** Return a successful response whose body is not read yet. Throws SvcError, or the reason of an abort. */
  async open(request: HttpRequest, options: RequestOptions = {}): Promise<Reply> {
    checkTimeout(options.timeoutMs);
    let hasNewKey = !this.key.canRefresh;
    for (let attempt = 0; ; attempt++) {
      throwIfAborted(options.signal);
      const key = await withAbort(this.key.get(), options.signal);
      const outcome = await this.attempt(request, options, key, attempt);
      if (outcome instanceof Reply) return outcome;
      if (outcome.error.status === 401 && !hasNewKey) {
        hasNewKey = true;
        attempt--; // a new key is not a retry
        await withAbort(this.key.reject(key), options.signal);
        continue;
      }
      if (outcome.delay === undefined || attempt >= this.options.retries) throw outcome.error;
      await sleep(outcome.delay, options.signal);
    }
  }

  /** Send the request once. Return the response, or the error and the delay before a retry. */
  private async attempt(
    request: HttpRequest,
    options: RequestOptions,
    key: string | undefined,
    attempt: number,
  ): Promise<Reply | { error: SvcError; delay: number | undefined }> {
    const timeoutMs = options.timeoutMs ?? this.options.timeoutMs;
    const guard = new RequestGuard(timeoutMs, options.signal);
    const toError = (error: unknown, what: string): unknown => this.toError(error, what, guard, options.signal);
    let raw: RawReply;
    try {
      raw = await guard.run(this.send(request, key, guard.signal, timeoutMs));
    } catch (error) {
      guard.release(true);
      const failure = toError(error, CANNOT_REACH);
      if (!(failure instanceof GatewayFailed || failure instanceof RegistryUnreachable)) throw failure;
      return { error: failure, delay: guard.timedOut ? undefined : retryDelay(attempt) };
    }
    const reply = new Reply(raw, guard, toError);
    if (raw.status >= 200 && raw.status < 300) return reply;
    if (this.options.serverKind !== "registry" && isRedirect(raw.status)) {
      reply.close();
      return { error: this.redirectError(raw), delay: undefined };
    }
    let failure: SvcError;
    try {
      failure = errorFromResponse(raw.status, raw.header, await reply.text());
    } catch (error) {
      if (!(error instanceof SvcError)) throw error;
      failure = error;
    }
    return { error: failure, delay: isRetryable(raw.status, raw.header) ? retryDelay(attempt, raw.header) : undefined };
  }

  private async send(request: HttpRequest, key: string | undefined, signal: AbortSignal, timeoutMs: number): Promise<RawReply> {
    const headers: Record<string, string> = { ...request.headers };
    if (key !== undefined) headers["authorization"] = `Bearer ${key}`;
    const url = this.baseUrl + request.path;
    if (request.isTextStream && !this.canStream) {
      return sendWithXhr(request.method, url, headers, request.body as string, signal);
    }
    // Only this class reads files of the phone: the `fetch` of Expo rejects them.
    if (request.body instanceof Object && isReactNative() && request.body instanceof FormData) {
      return sendWithXhr(request.method, url, headers, request.body, signal);
    }
    const send = this.options.fetch ?? globalThis.fetch;
    if (typeof send !== "function") throw new InvalidRequest("There is no `fetch` here. Give the client one.", { param: "fetch" });
    // Not "error", which Cloudflare Workers reject.
    const init: RequestInit = { method: request.method, headers, signal, redirect: this.options.serverKind === "registry" ? "follow" : "manual" };
    if (request.body !== undefined) init.body = request.body as BodyInit;
    const dispatcher = this.options.fetch ? undefined : dispatcherFor(timeoutMs);
    if (dispatcher) Object.assign(init, { dispatcher });
    const response = await send(url, init);
    return { status: response.status, header: (name) => response.headers.get(name), read: bodyReader(response) };
  }

  private redirectError(raw: RawReply): SvcError {
    const place = raw.header("location");
    const error = new GatewayFailed(`The gateway at ${this.baseUrl} redirects${place ? ` to ${place.slice(0, 200)}` : ""}. The SDK does not follow it. Set the address that has the gateway.`, {
      requestId: raw.header("x-request-id") ?? undefined,
    });
    if (raw.status) error.status = raw.status;
    return error;
  }

  private toError(error: unknown, what: string, guard: RequestGuard, signal: AbortSignal | undefined): unknown {
    const server = `The ${this.options.serverKind ?? "gateway"} at ${this.baseUrl}`;
    const Failure = this.options.serverKind === "registry" ? RegistryUnreachable : GatewayFailed;
    if (guard.timedOut) return new Failure(`${server} timed out.`);
    if (error instanceof SvcError || signal?.aborted) return error;
    const cause = (error as { cause?: unknown } | null)?.cause;
    const { message } = (cause instanceof Error && cause.message ? cause : error) as { message?: string };
    let text = `${server} ${what}: ${(message ?? String(error)).replace(/\.$/, "")}.`;
    // A browser does not say why it blocked a request.
    const page = (globalThis as { location?: { origin?: string } }).location?.origin;
    if (what === CANNOT_REACH && page && !this.baseUrl.startsWith(`${page}/`)) text += ` If it is running, this page needs its origin ${page} in [gateway] cors_origins.`;
    if (this.baseUrl === PRODUCTION_GATEWAY) text += " Call setGatewayUrl(…), or start a gateway on this machine: svc up";
    return new Failure(text, { cause: error });
  }
}

/** Return whether a response of `fetch` is a redirect, which a browser shows as status 0. */
function isRedirect(status: number): boolean {
  return status === 0 || (status >= 300 && status < 400);
}

/** Return a function that reads the body in parts, or at once where `fetch` cannot stream. */
function bodyReader(response: Response): RawReply["read"] {
  const body = response.body as ReadableStream<Uint8Array> | null | undefined;
  if (body) {
    const reader = body.getReader();
    return async () => {
      const { done, value } = await reader.read();
      return done ? undefined : value;
    };
  }
  let isRead = false;
  return async () => {
    if (isRead) return undefined;
    isRead = true;
    return new Uint8Array(await response.arrayBuffer());
  };
}
