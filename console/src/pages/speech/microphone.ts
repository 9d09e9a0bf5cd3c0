/** Audio of the microphone as PCM: 16 bits, 16 kHz, mono. */
import workletUrl from "./capture.worklet.ts?worker&url";

export const SAMPLE_RATE = 16_000;

/** The sections of a low-pass filter of the sixth order. */
const BUTTERWORTH_Q_DECIBELS = [-5.7, -3, 5.7];

export interface Frame {
  pcm: ArrayBuffer;
  /** The loudest sample of the frame, from 0 to 1. */
  peak: number;
}

export class MicrophoneError extends Error {}

const MICROPHONE_ENDED = "The microphone was disconnected, or its permission was withdrawn. Start again.";

/** Firefox processes no audio at all without a device for output, and does not say so. */
const NO_AUDIO = "The browser delivers no audio. Some need a device for output too, such as speakers. Connect one, and start again.";
const FIRST_FRAME_MILLISECONDS = 8000;

/** Captures audio until `stop`. */
export class Microphone {
  private firstFrameTimer: ReturnType<typeof setTimeout> | undefined;

  private constructor(private readonly stream: MediaStream, private readonly audio: AudioContext) {}

  /**
   * Asks for permission and starts. `onEnd` gets a message for the user if the device ends by itself, as then all frames
   * that follow are silent, and if there are no frames. Throws `MicrophoneError`, which says what to do.
   */
  static async start(onFrame: (frame: Frame) => void, onEnd: (message: string) => void): Promise<Microphone> {
    if (!window.isSecureContext) {
      throw new MicrophoneError("Browsers offer the microphone over HTTPS or at localhost only. Open the console there.");
    }
    // The context resamples the device's audio. Its module is loaded first, so that no audio of the device is lost.
    let audio = await openContext({ sampleRate: SAMPLE_RATE });
    let stream: MediaStream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({
        audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true },
      });
    } catch (error) {
      await audio.close();
      throw new MicrophoneError(describeError(error));
    }
    let microphone = new Microphone(stream, audio);
    let source: AudioNode;
    try {
      source = audio.createMediaStreamSource(stream);
    } catch {
      // Firefox connects a device only to a context of the device's rate. The worklet resamples then.
      await audio.close();
      try {
        audio = await openContext({});
        microphone = new Microphone(stream, audio);
        source = withoutHighFrequencies(audio, audio.createMediaStreamSource(stream));
      } catch (error) {
        await microphone.stop();
        throw error;
      }
    }
    // Not called for a track that `stop` has ended.
    for (const track of stream.getTracks()) track.addEventListener("ended", () => onEnd(MICROPHONE_ENDED));
    try {
      const capture = new AudioWorkletNode(audio, "capture", { numberOfOutputs: 0, channelCount: 1 });
      microphone.firstFrameTimer = setTimeout(() => onEnd(NO_AUDIO), FIRST_FRAME_MILLISECONDS);
      capture.port.onmessage = ({ data }: MessageEvent<Frame>) => {
        clearTimeout(microphone.firstFrameTimer);
        onFrame(data);
      };
      source.connect(capture);
    } catch (error) {
      await microphone.stop();
      throw error;
    }
    return microphone;
  }

  async stop(): Promise<void> {
    clearTimeout(this.firstFrameTimer);
    for (const track of this.stream.getTracks()) track.stop();
    if (this.audio.state !== "closed") await this.audio.close();
  }
}

async function openContext(options: AudioContextOptions): Promise<AudioContext> {
  const audio = new AudioContext(options);
  try {
    await audio.audioWorklet.addModule(workletUrl);
  } catch (error) {
    await audio.close();
    throw new MicrophoneError(describeError(error));
  }
  return audio;
}

/** Removes what a rate of 16 kHz cannot hold, and would turn into noise. */
function withoutHighFrequencies(audio: AudioContext, source: AudioNode): AudioNode {
  let last = source;
  for (const Q of BUTTERWORTH_Q_DECIBELS) {
    const filter = new BiquadFilterNode(audio, { type: "lowpass", frequency: 6500, Q });
    last.connect(filter);
    last = filter;
  }
  return last;
}

function describeError(error: unknown): string {
  const name = error instanceof DOMException ? error.name : "";
  if (name === "NotAllowedError") {
    return "The browser does not allow the microphone. Allow it in the settings of this site, and start again.";
  }
  if (name === "NotFoundError") return "There is no microphone. Connect one, and start again.";
  if (name === "NotReadableError") return "Another program uses the microphone. Close it, and start again.";
  return "The microphone could not be started.";
}
