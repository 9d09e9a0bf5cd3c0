/** Audio as WAV files of 16 bits, mono (http://soundfile.sapp.org/doc/WaveFormat/). */

const RATE = 16_000;
export const MAX_WAV_BYTES = 8 << 20; // MAX_ONLINE_AUDIO_BYTES of the gateway
const HEADER_BYTES = 44;

export class AudioProblem extends Error {}

/** Joins frames of PCM. */
export function encodeWav(frames: ArrayBuffer[], rate: number): ArrayBuffer {
  const dataBytes = frames.reduce((sum, frame) => sum + frame.byteLength, 0);
  const wav = new Uint8Array(HEADER_BYTES + dataBytes);
  const header = new DataView(wav.buffer);
  const writeText = (offset: number, text: string): void => wav.set(new TextEncoder().encode(text), offset);
  writeText(0, "RIFF");
  header.setUint32(4, HEADER_BYTES - 8 + dataBytes, true);
  writeText(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true);
  header.setUint16(22, 1, true);
  header.setUint32(24, rate, true);
  header.setUint32(28, rate * 2, true);
  header.setUint16(32, 2, true);
  header.setUint16(34, 16, true);
  writeText(36, "data");
  header.setUint32(40, dataBytes, true);
  let offset = HEADER_BYTES;
  for (const frame of frames) {
    wav.set(new Uint8Array(frame), offset);
    offset += frame.byteLength;
  }
  return wav.buffer;
}

/** Decodes a file in any format that the browser knows. Throws `AudioProblem`. */
export async function readAudioFile(file: File): Promise<ArrayBuffer> {
  let decoded: AudioBuffer;
  try {
    decoded = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new AudioProblem(`${file.name} is not audio that this browser can read. Use WAV, MP3, FLAC or Ogg.`);
  }
  if (decoded.length * 2 > MAX_WAV_BYTES) throw new AudioProblem("The audio is longer than four minutes. Use a shorter file.");
  const channels = Array.from({ length: decoded.numberOfChannels }, (_, index) => decoded.getChannelData(index));
  const pcm = new Int16Array(decoded.length);
  for (let index = 0; index < pcm.length; index += 1) {
    const sum = channels.reduce((total, channel) => total + (channel[index] ?? 0), 0);
    pcm[index] = Math.max(-1, Math.min(1, sum / channels.length)) * 32767;
  }
  return encodeWav([pcm.buffer], RATE);
}

export function toBase64(bytes: ArrayBuffer): string {
  const view = new Uint8Array(bytes);
  let text = "";
  const step = 0x8000; // arguments of one call are limited
  for (let offset = 0; offset < view.length; offset += step) {
    text += String.fromCharCode(...view.subarray(offset, offset + step));
  }
  return btoa(text);
}

export function fromBase64(text: string): Blob {
  return new Blob([Uint8Array.from(atob(text), (character) => character.charCodeAt(0))], { type: "audio/wav" });
}
