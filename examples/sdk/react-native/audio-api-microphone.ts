/** The microphone as a source of live speech, with react-native-audio-api: for apps without Expo. */

import { AudioQueue, PermissionDenied, Resampler, UsageError, type AudioSource } from "@svc/client";
import { AudioManager, AudioRecorder } from "react-native-audio-api";

/** Start the recording. Pass the result to `session.pipe`, or this function to `useLiveTranscript` as `source`. */
export async function startMicrophone(): Promise<AudioSource & { stop: () => void }> {
  if ((await AudioManager.requestRecordingPermissions()) !== "Granted") {
    throw new PermissionDenied("The microphone is blocked. Allow it for this app in the settings of the phone.");
  }
  AudioManager.setAudioSessionOptions({ iosCategory: "playAndRecord", iosMode: "default" });
  const queue = new AudioQueue();
  const recorder = new AudioRecorder();
  let resampler: Resampler | undefined;
  const onError = ({ message }: { message: string }): never => {
    throw new UsageError(`The microphone cannot be started: ${message}.`);
  };
  const registered = recorder.onAudioReady({ sampleRate: 16_000, bufferLength: 1600, channelCount: 1 }, ({ buffer }) => {
    resampler ??= new Resampler(buffer.sampleRate); // a phone may give another rate
    queue.push(resampler.feed(buffer.getChannelData(0)));
  });
  if (registered.status === "error") onError(registered);
  recorder.onError(() => queue.end());
  const started = await recorder.start();
  if (started.status === "error") onError(started);
  const stop = (): void => {
    recorder.clearOnAudioReady();
    void recorder.stop();
    if (resampler) queue.push(resampler.flush());
    resampler = undefined;
    queue.end();
  };
  return Object.assign(queue, { stop });
}
