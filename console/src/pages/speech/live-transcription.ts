/** The speech WebSocket (docs/reference/speech-protocol.md). The session cookie authenticates it. */
import { ApiError, requestJson } from "../../api/client";

export interface Transcript {
  /** Text that later events do not change. */
  stable: string;
  /** Text that can still change. */
  unstable: string;
}

type ServerMessage =
  | { type: "ready"; model: string }
  | { type: "partial"; text: string; is_stable: boolean }
  | { type: "final"; text: string }
  | { type: "closed"; reason?: string }
  | { type: "error"; error?: { message: string }; message?: string };

interface Callbacks {
  onTranscript: (transcript: Transcript) => void;
  /** An utterance is complete. */
  onFinal: (text: string) => void;
  onError: (message: string) => void;
  onClose: () => void;
}

/** The reasons of the gateway to end a session. */
const CLOSE_REASONS: Partial<Record<string, string>> = {
  key_revoked: "The key of this session was revoked.",
  idle_timeout: "The gateway has received no audio for a while, and ended the recording. Start again.",
  session_limit: "The recording has reached the maximum length. Start again.",
  server_shutdown: "The gateway is shutting down. Start again when it is back.",
};

const MAX_BUFFERED_BYTES = 320_000; // 10 s of audio
/** The gateway replaces a worker that sends nothing for 90 s. */
const FINISH_TIMEOUT_MILLISECONDS = 120_000;

export class LiveTranscription {
  private readonly socket: WebSocket;
  private stable = "";
  private isOpened = false;
  private isReady = false;
  /** Audio from before the connection is open. */
  private early: ArrayBuffer[] = [];
  /** The reason of the end is known, or was reported. */
  private isEnded = false;
  private hasClosed = false;
  private finishTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(model: string, language: string, private readonly callbacks: Callbacks) {
    const address = new URL("/v1/audio/transcriptions/stream", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    this.socket = new WebSocket(address, ["svc.v1"]);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      this.isOpened = true;
      this.send({ type: "config", ...(model && { model }), ...(language && { language }) });
      for (const pcm of this.early) this.socket.send(pcm);
      this.early = [];
    };
    this.socket.onmessage = ({ data }: MessageEvent<string>) => this.receive(JSON.parse(data) as ServerMessage);
    this.socket.onclose = () => {
      if (!this.isEnded) {
        if (this.finishTimer) callbacks.onError("The connection to the gateway was lost before the end of the transcript.");
        else if (this.isOpened) callbacks.onError("The connection to the gateway was lost. Start again.");
        else void describeRefusal().then(callbacks.onError);
      }
      this.close();
    };
  }

  /** Sends audio. Drops it if the gateway does not keep up, and says so. */
  sendAudio(pcm: ArrayBuffer): void {
    if (this.socket.readyState === WebSocket.CONNECTING) this.early.push(pcm);
    if (this.socket.readyState !== WebSocket.OPEN && this.socket.readyState !== WebSocket.CONNECTING) return;
    const waitingBytes = this.socket.bufferedAmount + this.early.length * pcm.byteLength;
    if (waitingBytes > MAX_BUFFERED_BYTES) {
      this.callbacks.onError("The gateway does not keep up with the audio.");
      this.close();
      return;
    }
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(pcm);
  }

  /** Ends the utterance, and closes the connection after its final text. */
  finish(): void {
    if (this.socket.readyState === WebSocket.OPEN) {
      this.send({ type: "flush" });
      this.send({ type: "close" });
      this.waitForEnd();
    } else {
      this.close();
    }
  }

  private waitForEnd(): void {
    clearTimeout(this.finishTimer);
    this.finishTimer = setTimeout(() => {
      this.callbacks.onError("The gateway did not send the end of the transcript. Check the connection to it.");
      this.close();
    }, FINISH_TIMEOUT_MILLISECONDS);
  }

  /** Does not wait for the gateway, which may not respond any more. */
  private close(): void {
    this.isEnded = true;
    clearTimeout(this.finishTimer);
    this.socket.close();
    if (this.hasClosed) return;
    this.hasClosed = true;
    this.callbacks.onClose();
  }

  private send(message: object): void {
    this.socket.send(JSON.stringify(message));
  }

  private receive(message: ServerMessage): void {
    if (this.hasClosed) return;
    if (this.finishTimer) this.waitForEnd();
    if (message.type === "ready") {
      this.isReady = true;
    } else if (message.type === "partial") {
      if (message.is_stable) this.stable = message.text;
      const isContinued = message.text.startsWith(this.stable);
      const stable = isContinued ? this.stable : "";
      this.callbacks.onTranscript({ stable, unstable: message.text.slice(stable.length) });
    } else if (message.type === "final") {
      this.stable = "";
      this.callbacks.onFinal(message.text);
    } else if (message.type === "error") {
      this.callbacks.onError(message.error?.message ?? message.message ?? "The gateway reported an error.");
      // The session has no model: it would discard the audio.
      if (!this.isReady) this.close();
    } else { // closed
      const problem = CLOSE_REASONS[message.reason ?? ""];
      if (problem) this.callbacks.onError(problem);
      this.close();
    }
  }
}

/** Says why the handshake failed, which browsers do not tell scripts. It opens the login if the session has ended. */
async function describeRefusal(): Promise<string> {
  try {
    await requestJson("/console/session");
  } catch (error) {
    if (error instanceof ApiError) return error.status === 401 ? "The session has ended. Log in, and start again." : error.message;
    throw error;
  }
  return "The gateway did not accept the WebSocket of the recording. A proxy before the gateway must allow WebSockets.";
}
