/** Calls the gateway's API with the session cookie. Types come from `openapi.yaml`. */
import type { SessionInfo, paths } from "../../build/schema";

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
    readonly param: string | null,
    readonly requestId: string | null,
    readonly retryAfterSeconds: number | null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

export type Session = SessionInfo;

const UNREACHABLE_MESSAGE = "The gateway cannot be reached. Check that it is running.";
/**
 * A connection that was lost unnoticed, as in a change of networks, would block its page for many minutes. The gateway
 * gives up a query of the ledger after 60 s, and takes less for a change.
 */
const TIMEOUT_SECONDS = 65;

let session: Session | null = null;
const endListeners = new Set<() => void>();

/** Calls `listener` when a response says that the session has ended. Returns a function that removes it. */
export function onSessionEnd(listener: () => void): () => void {
  endListeners.add(listener);
  return () => endListeners.delete(listener);
}

const changeListeners = new Set<(session: Session) => void>();

/** Calls `listener` when another tab has logged in with another key. Returns a function that removes it. */
export function onSessionChange(listener: (session: Session) => void): () => void {
  changeListeners.add(listener);
  return () => changeListeners.delete(listener);
}

const otherListeners = new Set<(other: Session | null) => void>();

/**
 * Calls `listener` when another tab has logged in with another key, whose data all tabs get from then on, and with null
 * when the key of this tab has logged in again. Returns a function that removes it.
 */
export function onOtherSession(listener: (other: Session | null) => void): () => void {
  otherListeners.add(listener);
  return () => otherListeners.delete(listener);
}

/** The tabs of a browser share the cookie. A message is the id of the key that has logged in, or null after a logout. */
const tabs = new BroadcastChannel("svc.session");
/** The key whose session has ended while its pages are open. They stay for it, with their input. */
let endedKeyId: string | null = null;
/** The session of another key that the cookie has. */
let other: Session | null = null;

tabs.onmessage = ({ data: keyId }: MessageEvent<string | null>) => {
  if (other !== null || keyId !== (session?.key_id ?? null)) void readCookie();
};

/** Compares the session of the cookie with that of this tab. */
async function readCookie(): Promise<void> {
  const response = await send("/console/session", {}).catch(() => null);
  if (response?.status === 401) {
    endSession();
    return;
  }
  const current = response?.ok ? await readJson<Session>(response).catch(() => null) : null;
  if (!current) return; // the next request of the page finds out
  const isStart = session === null;
  if (isStart && endedKeyId !== null && endedKeyId !== current.key_id) return;
  const isSameKey = session?.key_id === current.key_id;
  other = isStart || isSameKey ? null : current;
  otherListeners.forEach((listener) => listener(other));
  if (other) return; // the page can have input that nobody else has
  session = current;
  endedKeyId = null;
  if (!isStart) return;
  changeListeners.forEach((listener) => listener(current));
  startListeners.forEach((listener) => listener());
}

function endSession(): void {
  endedKeyId = session?.key_id ?? endedKeyId;
  session = null;
  other = null;
  otherListeners.forEach((listener) => listener(null));
  endListeners.forEach((listener) => listener());
}

const startListeners = new Set<() => void>();

/** Calls `listener` after a login. Returns a function that removes it. */
export function onSessionStart(listener: () => void): () => void {
  startListeners.add(listener);
  return () => startListeners.delete(listener);
}

export interface RequestOptions {
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  query?: Record<string, string | number | boolean | null | undefined>;
  /** Sent as JSON. */
  json?: unknown;
  body?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** The limit of `requestJson`. `Infinity` is for requests that may take as long as they need, and can be cancelled. */
  timeoutSeconds?: number;
}

/** Sends a request. Throws `ApiError` for an error response, and for a gateway that cannot be reached (status 0). */
export async function request(path: string, options: RequestOptions = {}): Promise<Response> {
  let usedSession = session;
  let response = await send(path, options);
  if (response.status === 403 && options.method && options.method !== "GET" && (await hasSessionOfAnotherTab(options.signal))) {
    usedSession = session;
    response = await send(path, options);
  }
  if (!response.ok) {
    const error = await readError(response);
    // A late response to a request from before a login says nothing about the new session.
    if (response.status === 401 && session === usedSession) endSession();
    throw error;
  }
  return response;
}

async function send(path: string, options: RequestOptions): Promise<Response> {
  const headers: Record<string, string> = { ...options.headers };
  const method = options.method ?? "GET";
  if (method !== "GET" && session) headers["x-csrf-token"] = session.csrf_token;
  if (options.json !== undefined) headers["content-type"] = "application/json";
  const body = options.json !== undefined ? JSON.stringify(options.json) : options.body;
  try {
    return await fetch(path + queryString(options.query), {
      method,
      headers,
      credentials: "same-origin",
      ...(body !== undefined && { body }),
      ...(options.signal && { signal: options.signal }),
    });
  } catch (error) {
    throw asApiError(error, UNREACHABLE_MESSAGE);
  }
}

/**
 * Returns whether another tab has logged in since, with the same key: the cookie is new, and so is the CSRF token.
 * Another key changes what this tab shows, so the caller does not repeat the change with it.
 */
async function hasSessionOfAnotherTab(signal?: AbortSignal): Promise<boolean> {
  const previous = session;
  const response = await send("/console/session", signal ? { signal } : {});
  if (!previous || !response.ok) return false;
  const current = await readJson<Session>(response);
  if (current.csrf_token === previous.csrf_token) return false;
  rememberSession(current);
  if (current.key_id === previous.key_id) return true;
  changeListeners.forEach((listener) => listener(current));
  return false;
}

/** Returns the JSON of a response. Throws `ApiError` if the response is cut off or is not JSON. */
async function readJson<Body>(response: Response): Promise<Body> {
  try {
    return (await response.json()) as Body;
  } catch (error) {
    const message = isJson(response)
      ? "The response of the gateway was cut off. Try again."
      : "The response is not from the gateway. A proxy before it, or the login page of a network, has sent it.";
    throw asApiError(error, message);
  }
}

/** Returns the error of a lost connection. Throws the error of an aborted request. */
function asApiError(error: unknown, message: string): ApiError {
  if (error instanceof DOMException && error.name === "AbortError") throw error;
  return new ApiError(message, 0, "connection_error", null, null, null);
}

/** All responses of the gateway's API are JSON, also its errors. */
function isJson(response: Response): boolean {
  return response.headers.get("content-type")?.includes("json") ?? false;
}

async function readError(response: Response): Promise<ApiError> {
  const sender = isJson(response) ? "The gateway" : "A proxy before the gateway";
  let message = `${sender} responded with status ${response.status}.`;
  let code = "unknown";
  let param: string | null = null;
  try {
    const problem = (await response.json()) as { error?: { message?: string; code?: string; param?: string | null } };
    message = problem.error?.message ?? message;
    code = problem.error?.code ?? code;
    param = problem.error?.param ?? null;
  } catch {
    // A proxy sent the response, or it was cut off.
  }
  const retryAfter = Number(response.headers.get("retry-after"));
  return new ApiError(
    message, response.status, code, param, response.headers.get("x-request-id"), retryAfter > 0 ? retryAfter : null,
  );
}

export function queryString(query: RequestOptions["query"]): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") parameters.set(name, String(value));
  }
  const text = parameters.toString();
  return text ? `?${text}` : "";
}

type GetPath = { [P in keyof paths]: paths[P] extends { get: unknown } ? P : never }[keyof paths];
type JsonOf<Operation> = Operation extends { responses: { 200: { content: { "application/json": infer Body } } } }
  ? Body
  : never;
/** The body of the 200 response of `GET path`. */
export type GetBody<P extends GetPath> = paths[P] extends { get: infer Operation } ? JsonOf<Operation> : never;

/** Sends a GET request whose path has no parameters. */
export async function get<P extends GetPath>(
  path: P, query?: RequestOptions["query"], signal?: AbortSignal,
): Promise<GetBody<P>> {
  return requestJson<GetBody<P>>(path, { ...(query && { query }), ...(signal && { signal }) });
}

/** Sends a GET request with another key, without the session. An error does not end the session. */
export async function getWithKey<P extends GetPath>(path: P, key: string, signal: AbortSignal): Promise<GetBody<P>> {
  let response: Response;
  try {
    response = await fetch(path, { credentials: "omit", headers: { authorization: `Bearer ${key}` }, signal });
  } catch (error) {
    throw asApiError(error, UNREACHABLE_MESSAGE);
  }
  if (!response.ok) throw await readError(response);
  return readJson<GetBody<P>>(response);
}

/** Sends a request and returns the JSON of its response. The caller names the type, which `openapi.yaml` has. */
export async function requestJson<Body>(path: string, options: RequestOptions = {}): Promise<Body> {
  return (await requestWithHeaders(path, options)).body as Body;
}

/** Sends a request and returns the JSON and the headers of its response. A request that takes too long is aborted. */
export async function requestWithHeaders(
  path: string, options: RequestOptions = {},
): Promise<{ body: unknown; headers: Headers }> {
  return withTimeout(options, async (signal) => {
    const response = await request(path, { ...options, signal });
    return { body: await readJson<unknown>(response), headers: response.headers };
  });
}

/** Calls `send`, and aborts the signal that it gets after the timeout. Throws `ApiError` then. */
async function withTimeout<Result>(
  options: RequestOptions, send: (signal: AbortSignal) => Promise<Result>,
): Promise<Result> {
  const seconds = options.timeoutSeconds ?? TIMEOUT_SECONDS;
  const timeout = new AbortController();
  const timer = seconds === Infinity ? undefined : setTimeout(() => timeout.abort(), seconds * 1000);
  try {
    return await send(options.signal ? AbortSignal.any([options.signal, timeout.signal]) : timeout.signal);
  } catch (error) {
    if (!timeout.signal.aborted || options.signal?.aborted) throw error;
    const isRead = options.method === undefined || options.method === "GET";
    const hint = isRead ? "" : " The request may have taken effect.";
    throw new ApiError(
      `The gateway did not respond within ${seconds} seconds. Check the connection to it.${hint}`,
      0, "timeout", null, null, null,
    );
  } finally {
    clearTimeout(timer);
  }
}

export async function loadSession(): Promise<Session | null> {
  try {
    return rememberSession(await requestJson<Session>("/console/session"));
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return null;
    throw error;
  }
}

export async function logIn(key: string): Promise<Session> {
  const started = rememberSession(await requestJson<Session>("/console/session", { method: "POST", json: { key } }));
  startListeners.forEach((listener) => listener());
  return started;
}

const RENEWAL_ATTEMPTS = 15;
const RENEWAL_DELAY_MILLISECONDS = 200;

/** Logs in again after a rotation of the session's own key. The gateway sees the new secret within a second. */
export async function renewSession(key: string): Promise<void> {
  await logIn(key);
  for (let attempt = 0; attempt < RENEWAL_ATTEMPTS; attempt += 1) {
    const response = await withTimeout({}, (signal) => send("/console/session", { signal }));
    if (response.ok) {
      const renewed = rememberSession(await readJson<Session>(response));
      changeListeners.forEach((listener) => listener(renewed));
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, RENEWAL_DELAY_MILLISECONDS));
  }
}

/** Removes the cookie. Throws `ApiError` if it is still there. */
export async function logOut(): Promise<void> {
  try {
    const options = { method: "DELETE" } as const;
    await withTimeout(options, (signal) => request("/console/session", { ...options, signal }));
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 401)) throw error;
  }
  session = null;
  endedKeyId = null;
  tabs.postMessage(null);
}

function rememberSession(current: Session): Session {
  session = current;
  endedKeyId = null;
  other = null;
  otherListeners.forEach((listener) => listener(null));
  tabs.postMessage(current.key_id);
  return current;
}
