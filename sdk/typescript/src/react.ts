/** Hooks for React and React Native. */

import { useCallback, useEffect, useRef, useState } from "react";
import { microphone } from "./audio.js";
import type { ChatParameters, ChatStream, Message } from "./chat-client.js";
import { Client } from "./client.js";
import type { AudioSource, LiveOptions, LiveSession } from "./live.js";

export interface ChatMessage {
  role: "user" | "assistant";
  content: string;
}

export interface UseChatOptions extends ChatParameters {
  /** The client. Default: one that `init` configures. */
  client?: Client | undefined;
  /** Instructions for the model, before the messages. */
  system?: string | undefined;
}

export interface UseChat {
  messages: readonly ChatMessage[];
  /** Whether a response is arriving. */
  isStreaming: boolean;
  /** The error of the last response. Its text stays in `messages`. */
  error: Error | undefined;
  /** Send a message. Does nothing while a response is arriving. Resolves at the end of the response. */
  send: (text: string) => Promise<void>;
  /** Cancel the response. */
  stop: () => void;
  /** Remove all messages. */
  clear: () => void;
}

/** Return a client that stays the same until the component is removed. */
function useClient(client: Client | undefined): () => Client {
  const made = useRef<Client | undefined>(undefined);
  return useCallback(() => client ?? (made.current ??= new Client()), [client]);
}

/** Hold a conversation, whose responses are streamed. */
export function useChat(options: UseChatOptions = {}): UseChat {
  const getClient = useClient(options.client);
  const [messages, setMessages] = useState<readonly ChatMessage[]>([]);
  const [isStreaming, setStreaming] = useState(false);
  const [error, setError] = useState<Error | undefined>(undefined);
  const latest = useRef({ messages, options });
  latest.current.options = options;
  const stream = useRef<ChatStream | undefined>(undefined);

  const stop = useCallback(() => {
    const running = stream.current;
    stream.current = undefined;
    running?.close();
    if (running) setStreaming(false);
  }, []);
  const update = useCallback((next: readonly ChatMessage[]) => {
    latest.current.messages = next;
    setMessages(next);
  }, []);
  const send = useCallback(
    async (text: string) => {
      if (stream.current) return;
      const history: readonly ChatMessage[] = [...latest.current.messages, { role: "user", content: text }];
      const { client, system, ...parameters } = latest.current.options;
      const sent: Message[] = [...(system ? [{ role: "system" as const, content: system }] : []), ...history.map((each) => ({ ...each }))];
      update(history);
      setError(undefined);
      setStreaming(true);
      let running: ChatStream | undefined;
      try {
        running = stream.current = getClient().chat(sent, { ...parameters, stream: true });
        for await (const chunk of running) {
          if (stream.current !== running) return;
          if (chunk.text) update([...history, { role: "assistant", content: running.text }]);
        }
      } catch (caught) {
        if (!running || stream.current === running) setError(caught as Error);
      } finally {
        if (!running || stream.current === running) {
          stream.current = undefined;
          setStreaming(false);
        }
      }
    },
    [getClient, update],
  );
  const clear = useCallback(() => {
    stop();
    setError(undefined);
    update([]);
  }, [stop, update]);
  useEffect(() => stop, [stop]);
  return { messages, isStreaming, error, send, stop, clear };
}

export interface UseLiveTranscriptOptions extends Omit<LiveOptions, "signal"> {
  /** The client. Default: one that `init` configures. */
  client?: Client | undefined;
  /** Starts the audio. Default: the browser's microphone. React Native apps return an AudioQueue. */
  source?: (() => Promise<AudioSource & { stop?: () => void }>) | undefined;
}

export interface UseLiveTranscript {
  /** The finished utterances. */
  finals: readonly string[];
  /** The text of the utterance that is being spoken. */
  partial: string;
  state: "idle" | "starting" | "listening" | "reconnecting" | "stopping";
  error: Error | undefined;
  start: () => Promise<void>;
  /** End the recording, and wait for the last text. */
  stop: () => Promise<void>;
}

interface RunningTranscript {
  session?: LiveSession;
  source?: AudioSource & { stop?: () => void };
  piping?: Promise<void>;
  controller: AbortController;
}

/** Show what is being said. */
export function useLiveTranscript(options: UseLiveTranscriptOptions = {}): UseLiveTranscript {
  const getClient = useClient(options.client);
  const [finals, setFinals] = useState<readonly string[]>([]);
  const [partial, setPartial] = useState("");
  const [state, setState] = useState<UseLiveTranscript["state"]>("idle");
  const [error, setError] = useState<Error | undefined>(undefined);
  const latest = useRef(options);
  latest.current = options;
  const current = useRef<RunningTranscript | undefined>(undefined);

  const start = useCallback(async () => {
    if (current.current) return;
    const running: RunningTranscript = { controller: new AbortController() };
    current.current = running;
    const { client, source = microphone, ...liveOptions } = latest.current;
    setError(undefined);
    setState("starting");
    try {
      const session = await getClient().live({ ...liveOptions, signal: running.controller.signal });
      running.session = session;
      running.source = await source();
      if (running.controller.signal.aborted) return;
      setState("listening");
      running.piping = session.pipe(running.source).catch(() => undefined); // the iteration throws the same error
      for await (const event of session) {
        if (event.type === "partial") setPartial(event.text);
        else if (event.type === "reconnecting") setState("reconnecting");
        else if (event.type === "reconnected") setState("listening");
        else if (event.type === "error") setError(event.error);
        else if (event.type === "final") {
          setPartial("");
          if (event.text) setFinals((before) => [...before, event.text]);
        }
      }
    } catch (caught) {
      if (!running.controller.signal.aborted) setError(caught as Error);
    } finally {
      running.source?.stop?.();
      running.controller.abort();
      if (current.current === running) {
        current.current = undefined;
        setState("idle");
      }
    }
  }, [getClient]);
  const stop = useCallback(async () => {
    const running = current.current;
    if (!running) return;
    running.source?.stop?.();
    if (!running.session) {
      running.controller.abort();
      return;
    }
    setState("stopping");
    try {
      await running.piping;
      await running.session.finish();
      await running.session.close();
    } catch {
      running.controller.abort(); // `start` reports the error
    }
  }, []);
  useEffect(
    () => () => {
      current.current?.source?.stop?.();
      current.current?.controller.abort();
    },
    [],
  );
  return { finals, partial, state, error, start, stop };
}
