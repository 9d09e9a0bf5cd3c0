/** The client of the svc gateway, for browsers, Node and React Native. */

// `Client` below has all calls, and takes the place of the client for chats alone.
export * from "./chat.js";
export {
  Client,
  type EmbeddingInput,
  type EmbeddingResult,
  type EmbedOptions,
  type NativeFile,
  type SpeakOptions,
  type TranscribeOptions,
  type Transcript,
} from "./client.js";
export {
  ResponseStream,
  type ResponseInput,
  type ResponseResult,
  type ResponsesOptions,
  type ResponseStreamEvent,
  type ResponseUsage,
} from "./responses.js";
export {
  AudioQueue,
  microphone,
  microphoneWorklet,
  Resampler,
  type Microphone,
  type MicrophoneOptions,
} from "./audio.js";
export {
  LiveSession,
  type AudioSource,
  type LiveClosed,
  type LiveError,
  type LiveEvent,
  type LiveFinal,
  type LiveOptions,
  type LivePartial,
  type LiveReady,
  type LiveReconnected,
  type LiveReconnecting,
  type Pcm,
} from "./live.js";
export { Bundle, type BundleDefaults, type BundleMetadata, type BundleOptions } from "./bundles.js";
export {
  Pipeline,
  registerRunner,
  type PipelineDefinition,
  type PipelineResult,
  type Runner,
  type Stage,
  type StageData,
  type StageOptions,
  type StageReport,
} from "./pipeline.js";
export type { BundleEntry } from "./reference.js";
export { opfsStorage } from "./opfs.js";
export { nodeStorage, type BundleStorage, type BundleWriter } from "./storage.js";
export { decodeBase64, type VerifyEd25519 } from "./signature.js";
