/** The microphone as a source of live speech, with expo-audio. */

import { AudioQueue, PermissionDenied, Resampler, type AudioSource } from "@svc/client";
import { requestRecordingPermissionsAsync, setAudioModeAsync, useAudioStream } from "expo-audio";
import { useCallback, useRef } from "react";

/** Return a function that starts the recording, for `useLiveTranscript` and `session.pipe`. */
export function useMicrophone(): () => Promise<AudioSource & { stop: () => void }> {
  const recording = useRef<{ queue: AudioQueue; resampler: Resampler | undefined }>(undefined);
  const { stream } = useAudioStream({
    sampleRate: 16_000,
    channels: 1,
    encoding: "float32",
    onBuffer({ data, sampleRate, channels }) {
      const current = recording.current;
      if (!current) return;
      // A phone may give another rate, or two channels, whose samples alternate.
      const samples = new Float32Array(data);
      current.resampler ??= new Resampler(sampleRate);
      current.queue.push(current.resampler.feed(channels === 1 ? samples : samples.filter((_, index) => index % channels === 0)));
    },
  });
  return useCallback(async () => {
    const { granted } = await requestRecordingPermissionsAsync();
    if (!granted) throw new PermissionDenied("The microphone is blocked. Allow it for this app in the settings of the phone.");
    await setAudioModeAsync({ allowsRecording: true, playsInSilentMode: true });
    const queue = new AudioQueue();
    const current = { queue, resampler: undefined };
    recording.current = current;
    await stream.start();
    const stop = (): void => {
      if (recording.current !== current) return;
      stream.stop();
      const { resampler } = recording.current;
      recording.current = undefined;
      if (resampler) queue.push(resampler.flush());
      queue.end();
    };
    return Object.assign(queue, { stop });
  }, [stream]);
}
