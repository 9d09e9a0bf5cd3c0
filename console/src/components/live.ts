/**
 * Listens to `GET /v1/events`. A browser has six connections for each host, so its tabs share one stream: the tab that
 * holds the lock reads it, and tells the others. Without a secure context there are no locks, and pages poll.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import type { StatsEvent } from "../../build/schema";

const CHANNEL = "svc.events";
const FIRST_RETRY_MILLISECONDS = 500;
const MAX_RETRY_MILLISECONDS = 4000;
/** The gateway sends an event every 2 seconds. */
const SILENCE_MILLISECONDS = 8000;
/** A connection without events for this time is replaced. */
const MAX_SILENCE_MILLISECONDS = 20_000;
const WAKE_MILLISECONDS = 2000;

/** `wake` is for the tab that reads the stream: browsers run the timers of a tab in the background once a minute. */
type Message = "alive" | "request" | "lost" | "wake";

/** Calls `onRequest` when requests ended, as soon as the page is visible. Returns whether events arrive. */
export function useRequestEvents(onRequest: () => void): boolean {
  const [isConnected, setIsConnected] = useState(false);
  const latest = useRef(onRequest);
  latest.current = onRequest;
  useEffect(() => {
    const channel = new BroadcastChannel(CHANNEL);
    const end = new AbortController();
    let silence: ReturnType<typeof setTimeout> | undefined;
    let isMissed = false;
    const showMissed = (): void => {
      if (document.hidden || !isMissed) return;
      isMissed = false;
      latest.current();
    };
    document.addEventListener("visibilitychange", showMissed);
    const wake = new EventTarget();
    let isSilent = true;
    const wakeTimer = setInterval(() => {
      if (isSilent && !document.hidden) channel.postMessage("wake" satisfies Message);
    }, WAKE_MILLISECONDS);
    const setSilent = (value: boolean): void => {
      isSilent = value;
      setIsConnected(!value);
    };
    const receive = (message: Message): void => {
      if (message === "wake") {
        wake.dispatchEvent(new Event("wake"));
        return;
      }
      setSilent(message === "lost");
      clearTimeout(silence);
      silence = setTimeout(() => setSilent(true), SILENCE_MILLISECONDS);
      if (message !== "request") return;
      isMissed = true;
      showMissed();
    };
    channel.onmessage = (event: MessageEvent<Message>) => receive(event.data);
    void leadWhenFree((message) => {
      channel.postMessage(message);
      receive(message);
    }, wake, end.signal);
    return () => {
      end.abort();
      clearInterval(wakeTimer);
      clearTimeout(silence);
      document.removeEventListener("visibilitychange", showMissed);
      channel.close();
    };
  }, []);
  return isConnected;
}

/** Waits until no other tab reads the stream, and reads it until `signal`. */
async function leadWhenFree(onMessage: (message: Message) => void, wake: EventTarget, signal: AbortSignal): Promise<void> {
  if (!("locks" in navigator)) return;
  try {
    await navigator.locks.request(CHANNEL, { signal }, () => readStream(onMessage, wake, signal));
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** Reads the stream. A lost connection is replaced, at once if `wake` has an event. */
function readStream(onMessage: (message: Message) => void, wake: EventTarget, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    let source: EventSource | null = null;
    let lastCount = "";
    let failures = 0;
    let retry: ReturnType<typeof setTimeout> | undefined;
    let silence: ReturnType<typeof setTimeout> | undefined;
    const onAlive = (message: Message): void => {
      clearTimeout(silence);
      silence = setTimeout(onLost, MAX_SILENCE_MILLISECONDS);
      onMessage(message);
    };
    const onLost = (): void => {
      source?.close();
      source = null;
      clearTimeout(silence);
      lastCount = "";
      onMessage("lost");
      retry = setTimeout(connect, Math.min(MAX_RETRY_MILLISECONDS, FIRST_RETRY_MILLISECONDS * 2 ** failures));
      failures += 1;
    };
    const connect = (): void => {
      clearTimeout(retry);
      // Pages read what they show from other routes, so the events with the requests themselves are left out.
      source = new EventSource("/v1/events?only=stats");
      source.onopen = () => {
        failures = 0;
        onAlive("alive");
      };
      source.addEventListener("stats", ({ data }: MessageEvent<string>) => {
        const { hour, requests } = JSON.parse(data) as StatsEvent;
        const count = `${hour} ${requests}`;
        // After a new connection, it is unknown what happened before.
        onAlive(count === lastCount ? "alive" : "request");
        lastCount = count;
      });
      source.onerror = onLost;
    };
    wake.addEventListener("wake", () => { if (!source) connect(); }, { signal });
    signal.addEventListener("abort", () => {
      clearTimeout(retry);
      clearTimeout(silence);
      source?.close();
      resolve();
    });
    connect();
  });
}
