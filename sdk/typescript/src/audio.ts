/** Audio for live speech: the browser's microphone, resampling, and sources that an app fills itself. */

import { ASYNC_ITERATOR } from "./async-iterator.js";
import { abortReason } from "./abort.js";
import { PermissionDenied, UsageError } from "./errors.js";
import type { AudioSource, Pcm } from "./live.js";

declare global {
  /** A type of browsers, which the types of Node and of workers lack. It is empty there. */
  // eslint-disable-next-line @typescript-eslint/no-empty-object-type -- adds to the interface of browsers
  interface MediaTrackConstraints {}
}

const SAMPLE_RATE = 16_000;
/** The zero crossings of the filter on each side, at the lower of the two rates. */
const FILTER_LOBES = 16;
const TABLE_STEPS = 256;

/** Audio that an app pushes: for recorders of React Native, and other callbacks. */
export class AudioQueue implements AudioSource {
  private readonly chunks: Pcm[] = [];
  private wake: (() => void) | undefined;
  private ended = false;

  /** Add 16-bit little-endian mono samples at 16 kHz. */
  push(pcm: Pcm): void {
    if (!this.ended) this.chunks.push(pcm);
    this.wake?.();
  }

  /** End the audio, after the chunks that were pushed. */
  end(): void {
    this.ended = true;
    this.wake?.();
  }

  async *[ASYNC_ITERATOR](): AsyncGenerator<Pcm, void, undefined> {
    for (;;) {
      const chunk = this.chunks.shift();
      if (chunk) yield chunk;
      else if (this.ended) return;
      else await new Promise<void>((resolve) => (this.wake = resolve));
    }
  }
}

/** Converts samples from -1 to 1 of any rate to 16-bit samples at 16 kHz, chunk by chunk. */
export class Resampler {
  private readonly step: number;
  private readonly halfWidth: number;
  private readonly table: Float64Array;
  private buffer: Float32Array;
  /** The place of the next sample in the buffer. */
  private position: number;

  constructor(inputRate: number) {
    if (!(inputRate >= 3000 && inputRate <= 768_000)) throw new UsageError("The sample rate is not between 3,000 and 768,000 Hz.");
    this.step = inputRate / SAMPLE_RATE;
    const cutoff = Math.min(1, 1 / this.step) * 0.95;
    this.halfWidth = Math.ceil(FILTER_LOBES / cutoff);
    this.table = filterTable(cutoff, this.halfWidth);
    this.buffer = new Float32Array(this.halfWidth);
    this.position = this.halfWidth;
  }

  /** Return the samples that can be computed from the audio so far. */
  feed(samples: Float32Array): Int16Array {
    const joined = new Float32Array(this.buffer.length + samples.length);
    joined.set(this.buffer);
    joined.set(samples, this.buffer.length);
    const count = Math.max(0, Math.ceil((joined.length - this.halfWidth - this.position) / this.step));
    const output = new Int16Array(count);
    for (let index = 0; index < count; index++) {
      output[index] = toInt16(this.sampleAt(joined, this.position));
      this.position += this.step;
    }
    const used = Math.max(0, Math.floor(this.position) - this.halfWidth);
    this.buffer = joined.slice(used);
    this.position -= used;
    return output;
  }

  /** Return the last samples. */
  flush(): Int16Array {
    return this.feed(new Float32Array(this.halfWidth));
  }

  private sampleAt(samples: Float32Array, position: number): number {
    const first = Math.ceil(position - this.halfWidth);
    const last = Math.min(samples.length - 1, Math.floor(position + this.halfWidth));
    let sum = 0;
    for (let index = Math.max(0, first); index <= last; index++) {
      sum += (samples[index] ?? 0) * (this.table[Math.round(Math.abs(index - position) * TABLE_STEPS)] ?? 0);
    }
    return sum;
  }
}

/** Return one side of a low-pass filter: a sinc in a Blackman window. */
function filterTable(cutoff: number, halfWidth: number): Float64Array {
  return Float64Array.from({ length: halfWidth * TABLE_STEPS + 1 }, (_, index) => {
    const distance = index / TABLE_STEPS;
    const angle = Math.PI * distance * cutoff;
    const sinc = angle === 0 ? 1 : Math.sin(angle) / angle;
    const turn = (Math.PI * distance) / halfWidth;
    return cutoff * sinc * (0.42 + 0.5 * Math.cos(turn) + 0.08 * Math.cos(2 * turn));
  });
}

function toInt16(value: number): number {
  return Math.max(-32768, Math.min(32767, Math.round(value * 32767)));
}

// The processor runs in the browser's audio thread. It mixes the channels, and sends 2,048 samples at a time.
const WORKLET = `registerProcessor("svc-microphone", class extends AudioWorkletProcessor {
  buffer = new Float32Array(2048);
  length = 0;
  process([channels]) {
    if (!channels.length) return true;
    for (let at = 0; at < channels[0].length; at++) {
      let sum = 0;
      for (const channel of channels) sum += channel[at];
      this.buffer[this.length++] = sum / channels.length;
      if (this.length === 2048) {
        this.port.postMessage(this.buffer.slice());
        this.length = 0;
      }
    }
    return true;
  }
});`;

export interface MicrophoneOptions {
  /** Chooses the device and its processing. Default: the browser's microphone with echo cancellation. */
  constraints?: MediaTrackConstraints | undefined;
  /** The address of a file with the audio processor, for pages whose content security policy forbids `blob:`. */
  workletUrl?: string | undefined;
  signal?: AbortSignal | undefined;
}

/** A running microphone: an async iterator of 16-bit mono samples at 16 kHz. */
export interface Microphone extends AudioSource {
  /** Stop the recording. The iteration ends after the last samples. */
  stop: () => void;
}

/** Return the text of the audio processor, for a file at `workletUrl`. */
export function microphoneWorklet(): string {
  return WORKLET;
}

/** Start the browser's microphone. Throws PermissionDenied or UsageError that says what to do. */
export async function microphone(options: MicrophoneOptions = {}): Promise<Microphone> {
  const { signal } = options;
  const devices = (globalThis as { navigator?: { mediaDevices?: MediaDevices } }).navigator?.mediaDevices;
  if (!devices || typeof AudioWorkletNode !== "function") {
    throw new UsageError("There is no microphone here. A page gets one from an https:// address or localhost. An app passes an AudioQueue.");
  }
  let media: MediaStream;
  try {
    media = await devices.getUserMedia({ audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true, ...options.constraints } });
  } catch (cause) {
    throw explain(cause);
  }
  const context = new AudioContext();
  const queue = new AudioQueue();
  let isStopped = false;
  const stop = (): void => {
    if (isStopped) return;
    isStopped = true;
    signal?.removeEventListener("abort", stop);
    for (const track of media.getTracks()) track.stop();
    void context.close();
    queue.push(resampler.flush());
    queue.end();
  };
  const resampler = new Resampler(context.sampleRate);
  try {
    if (signal?.aborted) throw abortReason(signal);
    signal?.addEventListener("abort", stop, { once: true });
    await loadWorklet(context, options.workletUrl);
    const node = new AudioWorkletNode(context, "svc-microphone", { numberOfOutputs: 0 });
    node.port.onmessage = ({ data }: MessageEvent<Float32Array>) => {
      if (!isStopped) queue.push(resampler.feed(data));
    };
    context.createMediaStreamSource(media).connect(node);
    await context.resume();
    for (const track of media.getTracks()) track.addEventListener("ended", stop);
  } catch (error) {
    stop();
    throw error;
  }
  return { stop, [ASYNC_ITERATOR]: () => queue[ASYNC_ITERATOR]() };
}

async function loadWorklet(context: AudioContext, address: string | undefined): Promise<void> {
  const url = address ?? URL.createObjectURL(new Blob([WORKLET], { type: "text/javascript" }));
  try {
    await context.audioWorklet.addModule(url);
  } catch (cause) {
    throw new UsageError("The audio processor cannot be loaded. Serve the text of `microphoneWorklet()`, and pass its address as `workletUrl`.", { cause });
  } finally {
    if (address === undefined) URL.revokeObjectURL(url);
  }
}

function explain(cause: unknown): Error {
  const { name, message } = cause as { name?: string; message?: string };
  switch (name) {
    case "NotAllowedError":
    case "SecurityError":
      return new PermissionDenied("The microphone is blocked. Allow it for this site in the browser's address bar, then try again.", { cause });
    case "NotFoundError":
    case "OverconstrainedError":
      return new UsageError("There is no such microphone. Connect one, or change the `constraints`.", { cause });
    case "NotReadableError":
      return new UsageError("Another program uses the microphone. Close it, then try again.", { cause });
  }
  return new UsageError(`The microphone cannot be started: ${message ?? String(cause)}.`, { cause });
}
