/** Speech from text, and the playback of it. */
import { request } from "../../api/client";

/** Returns WAV audio. */
export async function synthesize(model: string, text: string, voice: string, signal: AbortSignal): Promise<Blob> {
  const response = await request("/v1/audio/speech", {
    method: "POST", json: { model, input: text, voice, response_format: "wav" }, signal,
  });
  return new Blob([await response.arrayBuffer()], { type: "audio/wav" });
}
