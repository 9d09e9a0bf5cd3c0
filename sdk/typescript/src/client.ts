/** The client with everything: chats, responses, embeddings, speech. */

import { RequestGuard } from "./abort.js";
import { ChatClient, DEFAULT_MODEL, DEFAULT_RETRIES, DEFAULT_TIMEOUT_MS, encodeJson, JSON_HEADERS, numberOf, STREAM_HEADERS, streamError, textOf, toBase64 } from "./chat-client.js";
import { GatewayFailed, InvalidRequest, ModelNotFound, ProviderFailed, UsageError } from "./errors.js";
import { createKeySource, HttpSession, notA, type Reply, type RequestOptions } from "./http.js";
import { normalizeUrl } from "./address.js";
import { EventSplitter } from "./sse.js";
import { incompleteStream } from "./stream.js";
import { resolveBundle, type Bundle, type BundleOptions } from "./bundles.js";
import { currentConfig, normalizeApiKey } from "./config.js";
import { environmentVariables, stateFolder } from "./environment.js";
import { Pipeline, type PipelineDefinition } from "./pipeline.js";
import { opfsStorage } from "./opfs.js";
import { nodeStorage, type BundleStorage } from "./storage.js";
import { LiveSession, toBytes, type LiveOptions } from "./live.js";
import { ResponseStream, toResponseResult, type ResponseInput, type ResponseResult, type ResponsesOptions } from "./responses.js";
import { decodeBase64 } from "./signature.js";
import { isReactNative } from "./xhr.js";

const DEFAULT_EMBEDDING_MODEL = "text-embedding-3-small";
/** OpenAI's API requires a voice. A voice of the gateway's machine takes its own instead of a name that it lacks. */
const DEFAULT_VOICE = "alloy";

export type EmbeddingInput = string | readonly string[] | readonly number[] | readonly (readonly number[])[];

export interface EmbedOptions extends RequestOptions {
  model?: string | undefined;
  dimensions?: number | undefined;
}

/** The vectors, in the order of the inputs. A single text has one vector. */
export interface EmbeddingResult {
  vectors: number[][];
  usage: { promptTokens: number; totalTokens: number } | undefined;
  model: string;
  requestId: string | undefined;
}

export interface SpeakOptions extends RequestOptions {
  /** The model. Without it: the first voice of the gateway's machine, else its first speech model. */
  model?: string | undefined;
  voice?: string | undefined;
  /** `wav` (the default), `pcm`, `flac`, `mp3` or `opus`. */
  format?: string | undefined;
  speed?: number | undefined;
  /** Other fields of the request, such as `instructions`, go to the gateway unchanged. */
  [parameter: string]: unknown;
}

export interface TranscribeOptions extends RequestOptions {
  model?: string | undefined;
  language?: string | undefined;
}

/** A file in React Native, which its `FormData` reads. */
export interface NativeFile {
  uri: string;
  name: string;
  type: string;
}

export interface Transcript {
  text: string;
  raw: unknown;
}

/** Calls a gateway. */
export class Client extends ChatClient {
  private speechModel: string | undefined;

  /** Return a complete response of the Responses API, or with `stream: true` an iterator of its events. */
  responses(input: ResponseInput, options: ResponsesOptions & { stream: true }): ResponseStream;
  responses(input: ResponseInput, options?: ResponsesOptions & { stream?: false | undefined }): Promise<ResponseResult>;
  responses(input: ResponseInput, options: ResponsesOptions): Promise<ResponseResult> | ResponseStream;
  responses(input: ResponseInput, options: ResponsesOptions = {}): Promise<ResponseResult> | ResponseStream {
    const { model, signal, timeoutMs, stream, ...parameters } = options;
    const open = (requestSignal: AbortSignal | undefined): Promise<Reply> => {
      const requestOptions = { signal: requestSignal, timeoutMs };
      return this.withModel(model, DEFAULT_MODEL, undefined, requestOptions, (name) =>
        this.session.open(
          {
            method: "POST",
            path: "/responses",
            headers: stream ? STREAM_HEADERS : JSON_HEADERS,
            body: encodeJson({ model: name, input, ...parameters, ...(stream && { stream: true }) }),
            isTextStream: stream === true,
          },
          requestOptions,
        ),
      );
    };
    if (stream) return new ResponseStream(open, signal);
    return open(signal).then(async (reply) => toResponseResult(await reply.json("one of the Responses API"), reply.requestId));
  }

  /** Return the vectors of texts. */
  async embed(input: EmbeddingInput, options: EmbedOptions = {}): Promise<EmbeddingResult> {
    const { model, dimensions, ...requestOptions } = options;
    const reply = await this.withModel(model, DEFAULT_EMBEDDING_MODEL, "embedding", requestOptions, (name) =>
      this.session.open(
        {
          method: "POST",
          path: "/embeddings",
          headers: JSON_HEADERS,
          // Base64 is a third of the size of numbers.
          body: encodeJson({ model: name, input, encoding_format: "base64", dimensions }),
        },
        requestOptions,
      ),
    );
    const raw = (await reply.json("a list of embeddings")) as EmbeddingList | null;
    const isSingle = typeof input === "string" || typeof input[0] === "number";
    const vectors: number[][] = [];
    const rows = Array.isArray(raw?.data) ? raw.data : [];
    for (const [position, row] of rows.entries()) vectors[row.index ?? position] = toVector(row.embedding);
    const count = isSingle ? 1 : input.length;
    if (rows.length !== count || vectors.length !== count || Object.keys(vectors).length !== count) {
      throw new GatewayFailed("The response does not have one embedding for each input. Check that the address is a gateway's.", {
        requestId: reply.requestId,
      });
    }
    const usage = raw?.usage && { promptTokens: numberOf(raw.usage["prompt_tokens"]), totalTokens: numberOf(raw.usage["total_tokens"]) };
    return { vectors, usage: usage ?? undefined, model: textOf(raw?.model), requestId: reply.requestId };
  }

  /** Return the audio of a text. */
  async speak(text: string, options: SpeakOptions = {}): Promise<Uint8Array<ArrayBuffer>> {
    const audio = await (await this.openSpeech(text, options)).bytes();
    return (options.format ?? "wav") === "wav" ? completeWavSizes(audio) : audio;
  }

  /** Return the audio of a text in parts, while it is made. The iteration throws if the audio is interrupted. */
  async *speakStream(text: string, options: SpeakOptions = {}): AsyncGenerator<Uint8Array, void, undefined> {
    const reply = await this.openSpeech(text, options);
    try {
      for (let part = await reply.read(); part !== undefined; part = await reply.read()) {
        if (typeof part !== "string") yield part;
      }
    } finally {
      reply.close();
    }
  }

  private async openSpeech(text: string, options: SpeakOptions): Promise<Reply> {
    const { model, voice = DEFAULT_VOICE, format = "wav", signal, timeoutMs, ...parameters } = options;
    const requestOptions = { signal, timeoutMs };
    const name = model ?? this.speechModel ?? (this.speechModel = await this.chooseSpeechModel(requestOptions));
    const body = encodeJson({ model: name, input: text, voice, response_format: format, ...parameters });
    const headers = { "content-type": "application/json", accept: "*/*" };
    return this.session.open({ method: "POST", path: "/audio/speech", headers, body }, requestOptions);
  }

  private async chooseSpeechModel(options: RequestOptions): Promise<string> {
    const models = (await this.models(options)).filter((each) => each.kind === "speech");
    const chosen = models.find((each) => each.ownedBy === "local") ?? models[0];
    if (chosen) return chosen.id;
    throw new ModelNotFound("The gateway has no model for text to speech. Install a voice on its machine: svc models add piper-joe-en-us", {
      param: "model",
    });
  }

  /** Open a session of live speech, and wait until it is ready. */
  live(options: LiveOptions = {}): Promise<LiveSession> {
    return LiveSession.open(this.session, this.getOptions().WebSocket, options);
  }

  /** Return the bundle of a reference, such as `my-model@1`. Downloads and verifies it if it is not stored yet. */
  async bundle(reference: string, options: BundleOptions = {}): Promise<Bundle> {
    const environment = environmentVariables();
    const clientOptions = this.getOptions();
    const url = options.registryUrl ?? clientOptions.registryUrl ?? currentConfig().registryUrl ?? (environment["SVC_REGISTRY_URL"] || undefined);
    const key =
      normalizeApiKey(environment["SVC_REGISTRY_KEY"]) ??
      normalizeApiKey(clientOptions.apiKey) ??
      currentConfig().apiKey ??
      normalizeApiKey(environment["SVC_API_KEY"]);
    const registry =
      url === undefined
        ? undefined
        : new HttpSession(normalizeUrl(url, "registryUrl"), createKeySource(key), {
            retries: clientOptions.retries ?? DEFAULT_RETRIES,
            timeoutMs: clientOptions.timeoutMs ?? DEFAULT_TIMEOUT_MS,
            fetch: clientOptions.fetch,
            serverKind: "registry",
          });
    const given = Object.entries(options).filter(([, value]) => value !== undefined);
    const all: BundleOptions = { ...clientOptions.bundles, ...Object.fromEntries(given) };
    return resolveBundle(reference, registry, all.storage ?? defaultStorage(), all);
  }

  /** Return the pipeline of a definition: YAML, or an object. Throws UsageError that names what is wrong. */
  pipeline(definition: string | PipelineDefinition): Pipeline {
    return new Pipeline(definition, {
      chat: (text, stageOptions, model, requestOptions) => {
        const { system_prompt: system, timeout_s: timeout, gateway_url: gatewayUrl, ...parameters } = stageOptions;
        const client = gatewayUrl === undefined ? this : new ChatClient({ ...this.getOptions(), gatewayUrl });
        const messages = [...(system ? [{ role: "system" as const, content: system }] : []), { role: "user" as const, content: text }];
        if (timeout === undefined) return client.chat(messages, { model, ...requestOptions, ...parameters });
        const timeoutMs = Math.min(timeout * 1000, requestOptions.timeoutMs ?? Infinity);
        return withDeadline(client, timeout * 1000, requestOptions.signal, ({ signal }) => client.chat(messages, { model, signal, timeoutMs, ...parameters }));
      },
      bundle: (reference, registryUrl, signal) => this.bundle(reference, { registryUrl, signal }),
    });
  }

  /** Transcribe an audio file: a `Blob` or `File`, bytes, or in React Native an object with the file's `uri`. */
  async transcribe(audio: Blob | Uint8Array | ArrayBuffer | NativeFile, options: TranscribeOptions = {}): Promise<Transcript> {
    const { model, language, ...requestOptions } = options;
    const form = new FormData();
    if (model !== undefined) form.append("model", model);
    if (language !== undefined) form.append("language", language);
    form.append("response_format", "json");
    form.append("stream", "true"); // each event extends the timeout
    const isBytes = audio instanceof ArrayBuffer || ArrayBuffer.isView(audio);
    if (isReactNative() && (isBytes || audio instanceof Blob)) {
      // React Native's FormData sends neither bytes nor a Blob. Its native side reads a data URL like a file.
      const uri = isBytes ? `data:audio/wav;base64,${toBase64(toBytes(audio))}` : await readDataUrl(audio);
      form.append("file", { uri, name: "audio.wav", type: "audio/wav" } as unknown as Blob);
    } else if (isBytes) {
      form.append("file", new Blob([audio as Uint8Array<ArrayBuffer>], { type: "audio/wav" }), "audio.wav");
    } else if (typeof Blob === "function" && audio instanceof Blob) {
      form.append("file", audio, audio instanceof File ? audio.name : "audio.wav");
    } else if (typeof (audio as Partial<NativeFile> | null)?.uri === "string") {
      form.append("file", audio as unknown as Blob); // React Native's FormData reads the file
    } else {
      throw new InvalidRequest("`audio` is not a Blob, bytes, or an object with `uri`.", { param: "audio" });
    }
    const request = { method: "POST", path: "/audio/transcriptions", headers: { accept: "text/event-stream" }, body: form, isTextStream: true };
    const reply = await this.session.open(request, requestOptions);
    const isEvents = reply.header("content-type")?.startsWith("text/event-stream");
    const raw = (isEvents ? await readTranscript(reply) : await reply.json("a transcript")) as { text?: unknown } | null;
    if (typeof raw?.text !== "string") throw notA("a transcript", reply.requestId);
    return { text: raw.text, raw };
  }
}

/** Return the last event of a transcription. Throws ProviderFailed if there is none, or the error of the stream. */
async function readTranscript(reply: Reply): Promise<unknown> {
  const splitter = new EventSplitter();
  try {
    for (;;) {
      const text = await reply.readText();
      for (const { data } of text === undefined ? splitter.flush() : splitter.feed(text)) {
        if (data === undefined) continue; // a keep-alive
        const event = parseEvent(data, reply.requestId);
        if (event.error) throw streamError(event.error, reply.requestId);
        if (event.type !== "transcript.text.done") continue;
        void reply.drain();
        return event;
      }
      if (text === undefined) throw incompleteStream(reply);
    }
  } catch (error) {
    reply.close();
    throw error;
  }
}

function parseEvent(data: string, requestId: string | undefined): { type?: unknown; error?: Parameters<typeof streamError>[0] } {
  try {
    return Object(JSON.parse(data)) as object;
  } catch (cause) {
    throw new ProviderFailed("The server sent an event that is not one of a transcription.", { cause, requestId });
  }
}

/** Make a call that may take this time, retries included. */
async function withDeadline<T>(
  client: ChatClient,
  timeoutMs: number,
  signal: AbortSignal | undefined,
  call: (options: RequestOptions) => Promise<T>,
): Promise<T> {
  const guard = new RequestGuard(timeoutMs, signal);
  try {
    return await guard.run(call({ signal: guard.signal, timeoutMs }));
  } catch (error) {
    throw guard.timedOut ? new GatewayFailed(`The gateway at ${client.gatewayUrl} timed out.`) : error;
  } finally {
    guard.release(false);
  }
}

/** Return a Blob as a data URL. React Native's Blob has no `arrayBuffer`. */
function readDataUrl(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(new InvalidRequest("The Blob cannot be read.", { param: "audio", cause: reader.error }));
    reader.readAsDataURL(blob);
  });
}

/** Return the registry's folder in Node, and the private file system in browsers. */
function defaultStorage(): BundleStorage {
  const environment = environmentVariables();
  const folder = stateFolder(environment);
  if (folder !== undefined) return nodeStorage(environment["SVC_REGISTRY_ROOT"] || `${folder}/registry`);
  const storage = (globalThis as { navigator?: { storage?: { getDirectory?: unknown } } }).navigator?.storage;
  if (typeof storage?.getDirectory === "function") return opfsStorage();
  throw new UsageError("There is no storage for bundles here. Pass one as `storage`.", { param: "storage" });
}

interface EmbeddingList {
  data?: { embedding: unknown; index?: number }[];
  usage?: Record<string, unknown> | null;
  model?: unknown;
}

/** Return the numbers of base64, or of a list: some servers ignore `encoding_format`. */
function toVector(embedding: unknown): number[] {
  if (Array.isArray(embedding)) return embedding as number[];
  const bytes = typeof embedding === "string" ? decodeBase64(embedding) : undefined;
  if (!bytes?.length || bytes.length % 4) throw new GatewayFailed("The gateway sent an embedding that is not valid.");
  const view = new DataView(bytes.buffer);
  return Array.from({ length: bytes.length / 4 }, (_, index) => view.getFloat32(index * 4, true));
}

/** Write the sizes of a WAV file, which a server that streams does not know. */
function completeWavSizes(audio: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
  const view = new DataView(audio.buffer);
  const isStreamed = audio.length >= 44 && view.getUint32(0) === 0x52494646 && view.getUint32(4, true) >= 0x7fffffff;
  if (!isStreamed) return audio;
  view.setUint32(4, audio.length - 8, true);
  for (let offset = 12; offset + 8 <= audio.length; offset += 8 + view.getUint32(offset + 4, true)) {
    if (view.getUint32(offset) === 0x64617461) {
      view.setUint32(offset + 4, audio.length - offset - 8, true);
      break;
    }
  }
  return audio;
}
