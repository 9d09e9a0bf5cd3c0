/**
 * Listens to `GET /v1/events`. A browser has six connections for each host, so its tabs share one stream: the tab that
 * holds the lock reads it, and tells the others. Without a secure context there are no locks, and pages poll.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import type { StatsEvent } from "../../build/schema";

const CHANNEL = "svc.events";
const RETRY_MILLISECONDS = 5000;
/** The gateway sends an event every 2 seconds. */
const SILENCE_MILLISECONDS = 8000;

type Message = "alive" | "request" | "lost";

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
    const receive = (message: Message): void => {
      setIsConnected(message !== "lost");
      clearTimeout(silence);
      silence = setTimeout(() => setIsConnected(false), SILENCE_MILLISECONDS);
      if (message !== "request") return;
      isMissed = true;
      showMissed();
    };
    channel.onmessage = (event: MessageEvent<Message>) => receive(event.data);
    void leadWhenFree((message) => {
      channel.postMessage(message);
      receive(message);
    }, end.signal);
    return () => {
      end.abort();
      clearTimeout(silence);
      document.removeEventListener("visibilitychange", showMissed);
      channel.close();
    };
  }, []);
  return isConnected;
}

/** Waits until no other tab reads the stream, and reads it until `signal`. */
async function leadWhenFree(onMessage: (message: Message) => void, signal: AbortSignal): Promise<void> {
  if (!("locks" in navigator)) return;
  try {
    await navigator.locks.request(CHANNEL, { signal }, () => readStream(onMessage, signal));
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

function readStream(onMessage: (message: Message) => void, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    let source: EventSource | null = null;
    let lastCount = "";
    let retry: ReturnType<typeof setTimeout> | undefined;
    const connect = (): void => {
      // Pages read what they show from other routes, so the events with the requests themselves are left out.
      source = new EventSource("/v1/events?only=stats");
      source.onopen = () => onMessage("alive");
      source.addEventListener("stats", ({ data }: MessageEvent<string>) => {
        const { hour, requests } = JSON.parse(data) as StatsEvent;
        const count = `${hour} ${requests}`;
        // After a new connection, it is unknown what happened before.
        onMessage(count === lastCount ? "alive" : "request");
        lastCount = count;
      });
      source.onerror = () => {
        source?.close();
        lastCount = "";
        onMessage("lost");
        retry = setTimeout(connect, RETRY_MILLISECONDS);
      };
    };
    signal.addEventListener("abort", () => {
      clearTimeout(retry);
      source?.close();
      resolve();
    });
    connect();
  });
}
