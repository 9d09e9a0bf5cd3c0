/** Runs in the audio thread: turns samples into PCM of 16 bits, and reports the level. */

const FRAME_SAMPLES = 1600; // 100 ms at 16 kHz

interface CaptureProcessor {
  process(inputs: Float32Array[][]): boolean;
}
declare const AudioWorkletProcessor: { new (): { readonly port: MessagePort } };
declare function registerProcessor(name: string, processor: new () => CaptureProcessor): void;

class Capture extends AudioWorkletProcessor implements CaptureProcessor {
  private frame = new Int16Array(FRAME_SAMPLES);
  private length = 0;
  private peak = 0;

  process(inputs: Float32Array[][]): boolean {
    for (const sample of inputs[0]?.[0] ?? []) {
      const clamped = Math.max(-1, Math.min(1, sample));
      this.peak = Math.max(this.peak, Math.abs(clamped));
      this.frame[this.length++] = clamped * 32767;
      if (this.length === FRAME_SAMPLES) this.send();
    }
    return true;
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
