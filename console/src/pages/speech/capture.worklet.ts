/** Runs in the audio thread: turns samples into PCM of 16 bits at 16 kHz, and reports the level. */

const FRAME_SAMPLES = 1600; // 100 ms at 16 kHz

interface CaptureProcessor {
  process(inputs: Float32Array[][]): boolean;
}
declare const AudioWorkletProcessor: { new (): { readonly port: MessagePort } };
/** The rate of the context. */
declare const sampleRate: number;
declare function registerProcessor(name: string, processor: new () => CaptureProcessor): void;

class Capture extends AudioWorkletProcessor implements CaptureProcessor {
  private frame = new Int16Array(FRAME_SAMPLES);
  private length = 0;
  private peak = 0;
  /** Samples of the context for one of a frame. */
  private readonly step = sampleRate / 16_000;
  /** The place of the next sample, from the last one: 0 is the last one, and 1 the one that follows. */
  private position = 1;
  private last = 0;

  process(inputs: Float32Array[][]): boolean {
    for (const sample of inputs[0]?.[0] ?? []) {
      for (; this.position <= 1; this.position += this.step) this.add(this.last + (sample - this.last) * this.position);
      this.position -= 1;
      this.last = sample;
    }
    return true;
  }

  private add(sample: number): void {
    const clamped = Math.max(-1, Math.min(1, sample));
    this.peak = Math.max(this.peak, Math.abs(clamped));
    this.frame[this.length++] = clamped * 32767;
    if (this.length === FRAME_SAMPLES) this.send();
  }

  private send(): void {
    const { buffer } = this.frame;
    this.port.postMessage({ pcm: buffer, peak: this.peak }, [buffer]);
    this.frame = new Int16Array(FRAME_SAMPLES);
    this.length = 0;
    this.peak = 0;
  }
}

registerProcessor("capture", Capture);
