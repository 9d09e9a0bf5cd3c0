/**
 * What the SDK can do, checked in the same way on each platform: the table in docs/reference/typescript-sdk.md.
 *
 * This file uses no API of Node or of browsers alone. A platform calls `runCapabilities` with what it has.
 */

import * as sdk from "@svc/client";

const { AudioQueue, Client, InvalidBundle, PipelineFailed, Resampler, SvcError, registerRunner, tool } = sdk;
const TEXT = "Hello to all of you 🌍";
const WEATHER = {
  name: "get_weather",
  parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } }, required: ["city"] },
};
const CUT_STREAMS = ["reset", "closed", "without finish reason", "error event", "invalid event"];
const SECONDS_FOR_A_CHECK = 120;

function assert(condition, what) {
  if (!condition) throw new Error(what);
}

function equal(actual, expected, what) {
  const [one, other] = [JSON.stringify(actual), JSON.stringify(expected)];
  assert(one === other, `${what}: ${one} instead of ${other}`);
}

async function thrown(promise, what) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error(`${what} threw nothing`);
}

async function read(stream) {
  let text = "";
  for await (const chunk of stream) text += chunk.text;
  return text;
}

/**
 * The checks by capability. A check that returns "absent" needs something that the platform does not have.
 *
 * `context` has `gatewayUrl`, `key`, `faults`, `registryUrl`, `publicKey`, `clip` (a WAV file with 32-bit floats at
 * 16 kHz), `options` of `Client` for this platform, `makeStorage()`, and where there is one `microphone` and `hooks`,
 * a function that renders the hooks of `@svc/client/react`.
 */
const CHECKS = {
  async "chat, whole"({ client, play }) {
    await play("whole");
    const result = await client().chat("Hi");
    equal([result.text, result.usage.totalTokens, result.finishReason], ["Hello", 18, "stop"], "the response");
  },
  async "chat, streamed"({ client, play }) {
    for (const script of ["stream", "stream in single bytes"]) {
      await play(script);
      const stream = client().chat("Hi", { stream: true });
      const chunks = [];
      for await (const chunk of stream) chunks.push(chunk);
      equal(chunks.map((chunk) => chunk.text).join(""), TEXT, script);
      assert(chunks.filter((chunk) => chunk.text).length > 2, `${script}: the text came at once`);
      equal([stream.text, stream.finishReason, stream.usage.totalTokens], [TEXT, "stop", 18], script);
    }
  },
  async "broken streams throw"({ client, play }) {
    for (const script of CUT_STREAMS) {
      await play(script);
      const stream = client().chat("Hi", { stream: true });
      const error = await thrown(read(stream), script);
      assert(error instanceof SvcError, `${script}: ${error}`);
      assert(stream.finishReason === undefined && TEXT.startsWith(stream.text), `${script}: the stream looks complete`);
      assert((await thrown(stream.result(), script)) instanceof SvcError, `${script}: result()`);
    }
    for (const [script, name, status] of [["400", "InvalidRequest", 400], ["404", "ModelNotFound", 404], ["429", "RateLimited", 429], ["500", "ProviderFailed", 502]]) {
      for (const stream of [false, true]) {
        await play(script);
        const call = client().chat("Hi", { stream, model: "gpt-4o-mini" });
        const error = await thrown(stream ? call.result() : call, script);
        equal([error.name, error.status, typeof error.requestId], [name, status, "string"], script);
      }
    }
    await play("stalled");
    const late = await thrown(client({ timeoutMs: 500 }).chat("Hi", { stream: true }).result(), "stalled");
    equal(late.name, "GatewayFailed", "a stream that stalls");
  },
  async "cancellation"({ client, play, received }) {
    await play("stalled");
    const controller = new AbortController();
    const stream = client().chat("Hi", { stream: true, signal: controller.signal });
    const reading = (async () => {
      for await (const chunk of stream) if (chunk.text) controller.abort();
    })();
    equal((await thrown(reading, "an aborted stream")).name, "AbortError", "the reason");
    for (let count = 0; !(await received())[0].disconnected; count++) {
      assert(count < 400, "the request at the provider did not end in 20 s");
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  },
  async "tools"({ client, play }) {
    await play("tools", "tool stream");
    const tools = [tool(WEATHER)];
    const result = await client().chat("Weather?", { tools });
    const stream = client().chat("Weather?", { tools, stream: true });
    await read(stream);
    for (const calls of [result.toolCalls, stream.toolCalls]) {
      equal(calls.map(({ name, arguments: values }) => [name, values]), [["get_weather", { city: "Oslo", days: 2 }]], "the calls");
    }
  },
  async "structured output"({ client, play }) {
    await play("structured", "structured wrongly");
    const options = { schema: WEATHER.parameters };
    equal((await client().chat("Where?", options)).parsed, { city: "Oslo", days: 2 }, "the value");
    const wrong = await client().chat("Where?", options);
    let error;
    try {
      wrong.parsed;
    } catch (caught) {
      error = caught;
    }
    assert(error instanceof SvcError, "a value of another form was accepted");
  },
  async "Responses API"({ client, play }) {
    await play();
    equal((await client().responses("Hi")).status, "completed", "the status");
    const stream = client().responses("Hi", { stream: true });
    const text = await read(stream);
    assert(text && (await stream.result()).text === text, "the stream");
    await play("responses reset");
    assert((await thrown(client().responses("Hi", { stream: true }).result(), "a cut stream")) instanceof SvcError, "a cut stream");
  },
  async "embeddings"({ client, play }) {
    await play();
    const { vectors } = await client().embed(["a", "b"], { dimensions: 4 });
    equal(vectors, [[0, 0.5, 0.5, 0.5], [1, 0.5, 0.5, 0.5]], "the vectors");
  },
  async "text to speech"({ client, play }) {
    await play();
    const audio = await client().speak("Hello", { model: "tts-1", format: "mp3" });
    equal([...audio.subarray(0, 3)], [0x49, 0x44, 0x33], "the first bytes");
  },
  async "transcription of a file"({ client, clip }) {
    assert(/lazy dog/i.test((await client().transcribe(clip)).text), "the text");
  },
  async "live transcription"({ client, clip }) {
    const session = await client().live({ language: "en" });
    const queue = new AudioQueue();
    const samples = new Float32Array(clip.slice(findData(clip)).buffer);
    const resampler = new Resampler(16_000);
    for (let at = 0; at < samples.length; at += 1600) queue.push(resampler.feed(samples.subarray(at, at + 1600)));
    queue.push(resampler.flush());
    queue.end();
    await session.pipe(queue);
    assert(/lazy dog/i.test((await session.finish()).text), "the text");
    await session.close();
  },
  async "microphone"({ client, microphone }) {
    if (!microphone) return "absent";
    const session = await client().live({ language: "en" });
    const source = await microphone();
    const feeding = session.pipe(source);
    let text = "";
    for await (const event of session) {
      if (event.type === "partial" || event.type === "final") text += ` ${event.text}`;
      if (/lazy dog/i.test(text)) break;
    }
    source.stop();
    await feeding;
    await session.close();
  },
  async "bundles, with resume"({ client, registryUrl, makeStorage }) {
    const storage = await makeStorage();
    const controller = new AbortController();
    const onProgress = ({ receivedBytes }) => receivedBytes > 500_000 && controller.abort();
    const one = client({ registryUrl });
    await thrown(one.bundle("toy@1.0.0", { storage, onProgress, signal: controller.signal }), "an aborted download");
    const before = await storage.size("toy/1.0.0/any/toy.xyb.partial");
    assert(before > 500_000 && before < 3_000_000, `an aborted download left ${before} bytes`);
    let first;
    const bundle = await one.bundle("toy@1.0.0", { storage, onProgress: ({ receivedBytes }) => (first ??= receivedBytes) });
    assert(first > before, `the download began again: ${first} bytes after ${before}`);
    equal([bundle.reference, bundle.metadata.execution_template.type], ["toy@1.0.0", "Toy"], "the bundle");
    equal((await bundle.read("weights.bin")).length, 3_000_000, "the bytes");
    const offline = client({ registryUrl: "http://127.0.0.1:9" });
    equal((await offline.bundle("toy@1.0.0", { storage })).files.length, 3, "the files of the stored bundle");
  },
  async "signatures of bundles"({ client, registryUrl, publicKey, makeStorage }) {
    const storage = await makeStorage();
    const one = client({ registryUrl });
    const stranger = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
    const error = await thrown(one.bundle("toy@1.1.0", { storage, trustedKeys: [stranger] }), "a signature of another key");
    assert(error instanceof InvalidBundle, String(error));
    equal((await one.bundle("toy@1.1.0", { storage, trustedKeys: [publicKey] })).reference, "toy@1.1.0", "the bundle");
  },
  async "pipelines"({ client, play }) {
    await play("whole", "400");
    const pipeline = client().pipeline("name: demo\nstages:\n  - {id: ask, target: integration, provider: openai, model: gpt-4o-mini}\n");
    equal((await pipeline.run("Hi")).output, { kind: "text", text: "Hello" }, "the output");
    assert((await thrown(pipeline.run("Hi"), "a stage that fails")) instanceof PipelineFailed, "a stage that fails");
  },
  async "device models in pipelines"({ client, play, registryUrl, makeStorage }) {
    const bundles = { storage: await makeStorage() };
    registerRunner("Toy", async (bundle, input) => `${bundle.metadata.model_id} read: ${input}`);
    await play("whole");
    const pipeline = client({ registryUrl, bundles }).pipeline("name: demo\nstages:\n  - {id: ask, target: integration, provider: openai, model: gpt-4o-mini}\n  - toy@1.0.0\n");
    equal((await pipeline.run("Hi")).output, { kind: "text", text: "toy read: Hello" }, "the output");
  },
  async "React hooks"({ client, play, hooks }) {
    if (!hooks) return "absent";
    await play("stream");
    const messages = await hooks(client(), "Hi");
    equal(messages, [{ role: "user", content: "Hi" }, { role: "assistant", content: TEXT }], "the messages");
  },
};

/** Return where the samples of a WAV file begin. */
function findData(wav) {
  for (let at = 12; at < wav.length; at++) {
    if (wav[at] === 0x64 && wav[at + 1] === 0x61 && wav[at + 2] === 0x74 && wav[at + 3] === 0x61) return at + 8;
  }
  throw new Error("the clip is not a WAV file");
}

/** Run all checks. Returns `{capability, result}` for each: "ok", "absent", or what failed. */
export async function runCapabilities(context, report = () => {}) {
  const { gatewayUrl, key, faults, options } = context;
  const all = {
    ...context,
    client: (more = {}) => new Client({ gatewayUrl, apiKey: key, retries: 0, timeoutMs: 60_000, ...options, ...more }),
    async play(...names) {
      await fetch(`${faults}/forget`, { method: "POST" });
      await fetch(`${faults}/play`, { method: "POST", body: JSON.stringify(names) });
    },
    received: async () => (await fetch(faults)).json(),
  };
  const results = [];
  for (const [capability, check] of Object.entries(CHECKS)) {
    let result;
    let timer;
    try {
      const limit = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`no end in ${SECONDS_FOR_A_CHECK} s`)), SECONDS_FOR_A_CHECK * 1000);
      });
      result = (await Promise.race([check(all), limit])) ?? "ok";
    } catch (error) {
      result = `${error?.name}: ${error?.message}`;
    } finally {
      clearTimeout(timer);
    }
    results.push({ capability, result });
    report({ capability, result });
  }
  return results;
}
