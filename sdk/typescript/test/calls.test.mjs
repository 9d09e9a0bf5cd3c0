import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { inspect } from "node:util";
import { Client, GatewayFailed, InvalidRequest, ModelNotFound, PipelineFailed, ProviderFailed, RateLimited, SvcError, UsageError, image } from "@svc/client";
import { client, play, received, skip } from "./gateway.mjs";

test("responses returns a complete response", { skip }, async () => {
  await play();
  const result = await client().responses("Hi", { instructions: "Be brief." });
  assert.ok(result.text);
  assert.equal(result.status, "completed");
  assert.ok(result.usage.totalTokens > 0);
  assert.ok(result.output.length && result.id && result.requestId);
  assert.equal((await received())[0].json().instructions, "Be brief.");
});

test("responses streams, and a cut stream throws", { skip }, async () => {
  await play();
  const stream = client().responses("Hi", { stream: true });
  let text = "";
  for await (const event of stream) text += event.text;
  const result = await stream.result();
  assert.equal(result.text, text);
  assert.ok(text);
  await play("responses reset");
  const cut = client().responses("Hi", { stream: true });
  await assert.rejects(cut.result(), SvcError);
});

test("embed returns a vector for each text", { skip }, async () => {
  await play();
  const result = await client().embed(["a", "b"], { dimensions: 4 });
  assert.deepEqual(result.vectors, [[0, 0.5, 0.5, 0.5], [1, 0.5, 0.5, 0.5]]);
  assert.equal(result.usage.promptTokens, 8);
  assert.equal((await client().embed("a")).vectors.length, 1);
});

test("speak returns audio, whole and in parts", { skip }, async () => {
  await play();
  const options = { model: "tts-1", format: "mp3" };
  const audio = await client().speak("Hello", options);
  const parts = [];
  for await (const part of client().speakStream("Hello", options)) parts.push(part);
  assert.deepEqual(Buffer.concat(parts), Buffer.from(audio));
  assert.equal(Buffer.from(audio.subarray(0, 3)).toString(), "ID3");
});

test("an image is sent as a data URL", { skip }, async () => {
  await play("whole");
  await client().chat([{ role: "user", content: [{ type: "text", text: "What is it?" }, image(Uint8Array.of(1, 2, 3))] }]);
  assert.equal((await received())[0].json().messages[0].content[1].image_url.url, "data:image/png;base64,AQID");
});

/** Start a server that answers with `respond`, and return a client of it. */
async function withServer(respond, check, options = {}) {
  const requests = [];
  const server = createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
      request.body = Buffer.concat(parts);
      requests.push({ path: request.url, headers: request.headers, body: request.body });
      respond(response, requests.length, request);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await check(new Client({ gatewayUrl: `http://127.0.0.1:${server.address().port}`, apiKey: "key", ...options }), requests);
  } finally {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
}

function json(response, status, value, headers = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(value));
}

const WHOLE = { choices: [{ index: 0, message: { role: "assistant", content: "ok" }, finish_reason: "stop" }] };
const limited = { error: { message: "m", type: "t", code: "rate_limit_exceeded" } };

test("a request is sent again as the server asks", async () => {
  await withServer(
    (response, number) => (number < 3 ? json(response, 429, limited, { "retry-after-ms": "1" }) : json(response, 200, WHOLE)),
    async (one, requests) => {
      assert.equal((await one.chat("Hi")).text, "ok");
      assert.equal(requests.length, 3);
    },
  );
});

for (const [what, headers, options] of [
  ["retries are off", { "retry-after-ms": "1" }, { retries: 0 }],
  ["x-should-retry is false", { "x-should-retry": "false" }, {}],
  ["the delay is too long", { "retry-after": "121" }, {}],
]) {
  test(`a request is sent once if ${what}`, async () => {
    await withServer(
      (response) => json(response, 429, limited, headers),
      async (one, requests) => {
        await assert.rejects(one.chat("Hi"), RateLimited);
        assert.equal(requests.length, 1);
      },
      options,
    );
  });
}

test("an abort ends the wait before a retry", async () => {
  await withServer(
    (response) => json(response, 429, limited, { "retry-after": "100" }),
    async (one, requests) => {
      const controller = new AbortController();
      const call = one.chat("Hi", { signal: controller.signal });
      while (!requests.length) await new Promise((resolve) => setTimeout(resolve, 5));
      controller.abort();
      await assert.rejects(call, { name: "AbortError" });
    },
  );
});

test("a redirect is not followed, so that the key goes nowhere else", async () => {
  await withServer(
    (response) => response.writeHead(307, { location: "http://127.0.0.1:9/v1", "x-request-id": "req_1" }).end(),
    async (one, requests) => {
      const isRedirect = (error) => error instanceof GatewayFailed && error.status === 307 && error.requestId === "req_1" && error.message.includes("http://127.0.0.1:9/v1");
      await assert.rejects(one.chat("Hi"), isRedirect);
      assert.equal(requests.length, 1);
    },
  );
});

test("a redirect of a browser, which hides the place, names the cause", async () => {
  let count = 0;
  const opaque = async () => (count++, { status: 0, type: "opaqueredirect", headers: new Headers(), body: null });
  await assert.rejects(new Client({ gatewayUrl: "http://gw", fetch: opaque }).chat("Hi"), (error) => error instanceof GatewayFailed && error.message.includes("redirects."));
  assert.equal(count, 1);
});

test("a request has no redirect mode that Cloudflare Workers reject", async () => {
  const fetch = async (_url, { redirect }) => {
    if (redirect === "error") throw new TypeError("Invalid redirect value");
    return Response.json(WHOLE);
  };
  assert.equal((await new Client({ gatewayUrl: "http://gw", fetch, retries: 0 }).chat("Hi")).text, "ok");
});

test("a number that JSON does not have is rejected and named", async () => {
  const one = new Client({ gatewayUrl: "http://127.0.0.1:9", apiKey: "k", retries: 0 });
  const messages = [{ role: "user", content: null }, { role: "user", content: "Hi", weight: Infinity }];
  for (const [call, param] of [
    [() => one.chat("Hi", { temperature: NaN }), "temperature"],
    [() => one.chat("Hi", { temperature: -Infinity, stream: true }).result(), "temperature"],
    [() => one.chat(messages), "messages[1].weight"],
    [() => one.chat("Hi", { logit_bias: { 7: NaN } }), "logit_bias.7"],
    [() => one.responses("Hi", { top_p: NaN }), "top_p"],
    [() => one.embed("Hi", { dimensions: NaN }), "dimensions"],
    [() => one.speak("Hi", { model: "v", speed: NaN }), "speed"],
  ]) {
    await assert.rejects(call(), (error) => error instanceof InvalidRequest && error.param === param && error.message.startsWith(`${param} must be a finite number`));
  }
});

test("retryAfter takes a date as well", async () => {
  const headers = { "retry-after": new Date(Date.now() + 3_600_000).toUTCString() };
  await withServer(
    (response) => json(response, 429, limited, headers),
    async (one) => assert.rejects(one.chat("Hi"), (error) => error instanceof RateLimited && error.retryAfter > 3000 && error.retryAfter <= 3600),
    { retries: 0 },
  );
});

test("without a model, the first one that is offered is used from then on", async () => {
  await withServer(
    (response, number, request) => {
      if (request.url.endsWith("/models")) json(response, 200, { object: "list", data: [{ id: "v", kind: "speech" }, { id: "mine", owned_by: "local" }] });
      else if (number === 1) json(response, 404, { error: { message: "m", code: "model_not_found" } });
      else json(response, 200, WHOLE);
    },
    async (one, requests) => {
      assert.equal((await one.chat("Hi")).text, "ok");
      assert.equal((await one.chat("Hi")).text, "ok");
      assert.deepEqual(requests.map(({ path, body }) => (path.endsWith("/models") ? path : JSON.parse(body).model)), ["gpt-4o-mini", "/v1/models", "mine", "mine"]);
    },
  );
  await withServer(
    (response) => json(response, 404, { error: { message: "m", code: "model_not_found" } }),
    async (one) => assert.rejects(one.chat("Hi", { model: "named" }), ModelNotFound),
  );
});

/** Answer a request for a model that is missing, and stop at the list of models. */
const withoutModels = (response, _number, request) => {
  if (!request.url.endsWith("/models")) json(response, 404, { error: { message: "m", code: "model_not_found" } });
};

for (const [what, call] of [
  ["chat", (one, options) => one.chat("Hi", options)],
  ["a streamed chat", (one, options) => one.chat("Hi", { ...options, stream: true }).result()],
  ["responses", (one, options) => one.responses("Hi", options)],
  ["a streamed response", (one, options) => one.responses("Hi", { ...options, stream: true }).result()],
  ["embed", (one, options) => one.embed("Hi", options)],
]) {
  test(`${what} without a model obeys its signal and its timeout while the models are listed`, async () => {
    await withServer(
      withoutModels,
      async (one, requests) => {
        const controller = new AbortController();
        const reason = new Error("leaving");
        const aborted = call(one, { signal: controller.signal });
        while (requests.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
        controller.abort(reason);
        await assert.rejects(aborted, reason);
        await assert.rejects(call(one, { timeoutMs: 100, signal: AbortSignal.timeout(5000) }), (error) => error instanceof GatewayFailed && error.message.includes("timed out"));
      },
      { timeoutMs: 10_000, retries: 0 },
    );
  });
}

test("close ends a stream without a model while the models are listed", async () => {
  await withServer(
    withoutModels,
    async (one, requests) => {
      const stream = one.chat("Hi", { stream: true });
      const result = stream.result();
      while (requests.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
      stream.close();
      await assert.rejects(result, { name: "AbortError" });
    },
    { timeoutMs: 5000, retries: 0 },
  );
});

test("an abort of one call without a model leaves the others", async () => {
  const pending = [];
  await withServer(
    (response, _number, request) => {
      if (request.url.endsWith("/models")) pending.push(() => json(response, 200, { data: [{ id: "mine" }] }));
      else if (JSON.parse(request.body).model === "mine") json(response, 200, WHOLE);
      else json(response, 404, { error: { message: "m", code: "model_not_found" } });
    },
    async (one) => {
      const controller = new AbortController();
      const [aborted, other] = [one.chat("Hi", { signal: controller.signal }), one.chat("Hi")];
      const rejected = assert.rejects(aborted, { name: "AbortError" });
      while (!pending.length) await new Promise((resolve) => setTimeout(resolve, 5));
      controller.abort();
      await rejected;
      while (pending.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
      for (const respond of pending) respond();
      assert.equal((await other).text, "ok");
    },
    { timeoutMs: 5000, retries: 0 },
  );
});

/** Run with limits of Node's `fetch` of 0.3 s instead of 300 s. */
async function withShortNodeLimits(run) {
  await fetch("data:,"); // creates the dispatcher
  const names = ["undici.globalDispatcher.1", "undici.globalDispatcher.2"].map((name) => Symbol.for(name)).filter((name) => globalThis[name]);
  const originals = names.map((name) => globalThis[name]);
  const limits = { headersTimeout: 300, bodyTimeout: 300 };
  names.forEach((name, index) => {
    globalThis[name] = { dispatch: (options, handler) => originals[index].dispatch({ ...limits, ...options }, handler) };
  });
  try {
    await run();
  } finally {
    names.forEach((name, index) => (globalThis[name] = originals[index]));
  }
}

const HELLO = `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: "ok" } }] })}\n\n`;
const STOP = `data: ${JSON.stringify({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] })}\n\n`;

/** Send nothing for the longest time that a limit of 0.3 s takes, and then a response. A stream begins at once. */
function respondLate(response, _number, request) {
  const isStream = JSON.parse(request.body).stream;
  if (isStream) response.writeHead(200, { "content-type": "text/event-stream" }).write(HELLO);
  setTimeout(() => (isStream ? response.end(`${STOP}data: [DONE]\n\n`) : json(response, 200, WHOLE)), 2500);
}

test("a timeout above 300 s replaces the limits of Node's fetch", async () => {
  await withServer(
    respondLate,
    (one) =>
      withShortNodeLimits(async () => {
        const texts = await Promise.all([one.chat("Hi"), one.chat("Hi", { stream: true }).result()]);
        assert.deepEqual(texts.map((each) => each.text), ["ok", "ok"]);
      }),
    { timeoutMs: 600_000, retries: 0 },
  );
});

test("a limit of Node's fetch is a timeout, and the request is not sent again", async () => {
  const isTimeout = (error) => error instanceof GatewayFailed && error.message.endsWith(" timed out.");
  await withServer(
    respondLate,
    (one, requests) =>
      withShortNodeLimits(async () => {
        await Promise.all([assert.rejects(one.chat("Hi"), isTimeout), assert.rejects(one.chat("Hi", { stream: true }).result(), isTimeout)]);
        assert.equal(requests.length, 2);
      }),
    { timeoutMs: 60_000, retries: 2 },
  );
});

/** Events of a stream with these deltas of tool calls. */
const toolEvents = (...deltas) => deltas.map((delta) => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { tool_calls: [delta] } }] })}\n\n`).join("");

test("a call of a custom tool has its text as the argument input", async () => {
  const input = 'print("ä\n🌍")';
  const call = { id: "call_1", type: "custom", custom: { name: "run_code", input } };
  const tools = [{ type: "custom", custom: { name: "run_code" } }];
  await withServer(
    (response, _number, request) => {
      if (!JSON.parse(request.body).stream) return json(response, 200, { choices: [{ message: { content: null, tool_calls: [call] }, finish_reason: "tool_calls" }] });
      const begin = { index: 0, id: "call_1", type: "custom", custom: { name: "run_code", input: input.slice(0, 9) } };
      const stop = `data: ${JSON.stringify({ choices: [{ delta: {}, finish_reason: "tool_calls" }] })}\n\n`;
      response.end(`${toolEvents(begin, { index: 0, custom: { input: input.slice(9) } })}${stop}data: [DONE]\n\n`);
    },
    async (one) => {
      const whole = await one.chat("Hi", { model: "m", tools });
      const stream = one.chat("Hi", { model: "m", tools, stream: true });
      let argumentsJson = "";
      for await (const chunk of stream) argumentsJson += chunk.toolCall?.argumentsJson ?? "";
      assert.equal(argumentsJson, JSON.stringify({ input }));
      for (const { toolCalls, message } of [whole, stream]) {
        assert.deepEqual(toolCalls.map((each) => [each.id, each.name, each.arguments]), [["call_1", "run_code", { input }]]);
        assert.deepEqual(message.tool_calls, [{ id: "call_1", type: "function", function: { name: "run_code", arguments: JSON.stringify({ input }) } }]);
      }
    },
  );
});

test("errors of a response's content have the request's id", async () => {
  const headers = { "content-type": "text/event-stream", "x-request-id": "req_1" };
  await withServer(
    (response, number, request) => {
      if (!JSON.parse(request.body).stream) json(response, 200, { choices: [{ message: { tool_calls: [{ id: "call_1" }] } }] }, { "x-request-id": "req_1" });
      else if (number === 1) response.writeHead(200, headers).end(toolEvents({ index: 0, id: "call_1" }) + STOP);
      else response.writeHead(200, headers).end(`data: ${"x".repeat(9 * 1024 * 1024)}`);
    },
    async (one) => {
      const hasId = (text) => (error) => error instanceof ProviderFailed && error.requestId === "req_1" && error.message.includes(text);
      await assert.rejects(one.chat("Hi", { stream: true }).result(), hasId("without a name"));
      await assert.rejects(one.chat("Hi", { stream: true }).result(), hasId("too long"));
      await assert.rejects(one.responses("Hi", { stream: true }).result(), hasId("too long"));
      await assert.rejects(one.chat("Hi"), hasId("without a name"));
    },
  );
});

const COMPLETED = `data: ${JSON.stringify({ type: "response.completed", response: { object: "response", status: "completed", output: [] } })}\n\n`;

for (const [what, end] of [
  ["stalls", () => undefined],
  ["is reset", (response) => setTimeout(() => response.socket.resetAndDestroy(), 50)],
]) {
  test(`a stream is complete if its connection ${what} after the last event`, async () => {
    await withServer(
      (response, _number, request) => {
        response.writeHead(200, { "content-type": "text/event-stream" });
        response.write(request.url.endsWith("/responses") ? COMPLETED : `${HELLO}${STOP}data: [DONE]\n\n`, () => end(response));
      },
      async (one) => {
        assert.equal((await one.chat("Hi", { stream: true }).result()).text, "ok");
        assert.equal((await one.responses("Hi", { stream: true }).result()).status, "completed");
      },
      { timeoutMs: 2000, retries: 0 },
    );
  });
}

test("a connection is used again after a complete stream", async () => {
  const ports = new Set();
  await withServer(
    (response, _number, request) => {
      ports.add(request.socket.remotePort);
      response.write(`${HELLO}${STOP}data: [DONE]\n\n`, () => response.end());
    },
    async (one) => {
      for (let count = 0; count < 3; count++) {
        await one.chat("Hi", { stream: true }).result();
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      assert.equal(ports.size, 1);
    },
  );
});

test("timeout_s of a stage limits the whole call", async () => {
  await withServer(
    (response) => {
      response.writeHead(200, { "content-type": "application/json" });
      const timer = setInterval(() => response.write(" "), 50);
      setTimeout(() => {
        clearInterval(timer);
        response.end(JSON.stringify(WHOLE));
      }, 2000);
    },
    async (one, requests) => {
      const pipeline = (options) => one.pipeline({ name: "p", stages: [{ id: "ask", target: "integration", model: "m", options }] });
      await assert.rejects(pipeline({ timeout_s: 0.3 }).run("Hi"), (error) => error instanceof PipelineFailed && error.message.endsWith(" timed out."));
      await assert.rejects(pipeline({ timeout_s: 60 }).run("Hi", { signal: AbortSignal.timeout(100) }), { name: "TimeoutError" });
      assert.equal((await pipeline({ timeout_s: 60 }).run("Hi")).output.text, "ok");
      assert.equal(requests.length, 3);
    },
  );
});

test("timeoutMs of a run limits the wait for a byte", async () => {
  await withServer(
    () => {},
    async (one) => {
      for (const options of [{}, { timeout_s: 60 }]) {
        const pipeline = one.pipeline({ name: "p", stages: [{ id: "ask", target: "integration", model: "m", options }] });
        await assert.rejects(pipeline.run("Hi", { timeoutMs: 100 }), (error) => error instanceof PipelineFailed && error.message.endsWith(" timed out."));
      }
    },
    { retries: 0 },
  );
});

test("a run names what its input is not, and why a model stopped", async () => {
  const cut = { ...WHOLE, choices: [{ ...WHOLE.choices[0], finish_reason: "length" }] };
  await withServer(
    (response) => json(response, 200, cut),
    async (one, requests) => {
      const pipeline = one.pipeline({ name: "p", stages: [{ id: "ask", target: "integration", model: "m" }] });
      for (const input of [undefined, null, 5, {}]) await assert.rejects(pipeline.run(input), UsageError);
      await assert.rejects(pipeline.run(new Uint8Array(3)), { message: 'Stage "ask": A language model needs text, and gets audio.' });
      assert.equal(requests.length, 0);
      assert.equal((await pipeline.run("Hi")).stages[0].finishReason, "length");
    },
  );
});

test("a client and its errors do not print the key", async () => {
  const apiKey = "sk-not-to-print";
  const prints = (value) => (inspect(value, { depth: Infinity, showHidden: true }) + (JSON.stringify(value) ?? "")).includes(apiKey);
  await withServer(
    (response, number) => (number === 1 ? json(response, 200, WHOLE) : response.destroy()),
    async (one) => {
      assert.equal((await one.chat("Hi")).text, "ok");
      assert.ok(!prints(one));
      await assert.rejects(one.chat("Hi"), (error) => error instanceof GatewayFailed && !prints(error));
      const stream = one.chat("Hi", { stream: true });
      await assert.rejects(stream.result(), (error) => !prints(error));
      assert.ok(!prints(stream));
      assert.ok(!prints(one.pipeline("name: p\nstages: [a@1]\n")));
    },
    { apiKey, retries: 0 },
  );
});

test("transcribe sends the file, the model and the language", async () => {
  await withServer(
    (response) => json(response, 200, { text: "hello" }),
    async (one, requests) => {
      for (const audio of [new Uint8Array([1, 2, 3]), new Blob(["abc"]), new File(["abc"], "a.flac")]) {
        assert.equal((await one.transcribe(audio, { model: "m", language: "en" })).text, "hello");
      }
      const body = requests.at(-1).body.toString();
      assert.match(requests[0].headers["content-type"], /^multipart\/form-data; boundary=/);
      for (const part of ['name="model"\r\n\r\nm\r\n', 'name="language"\r\n\r\nen\r\n', 'filename="a.flac"', "abc"]) assert.ok(body.includes(part), part);
      await assert.rejects(one.transcribe("file.wav"), InvalidRequest);
    },
  );
});

test("transcribe reads events, so that each extends the timeout", async () => {
  const delta = 'data: {"type":"transcript.text.delta","delta":"Hel"}\n\n';
  const done = { type: "transcript.text.done", text: "Hello", usage: { type: "duration", seconds: 1 } };
  const ends = [`data: ${JSON.stringify(done)}\n\n`, 'data: {"error":{"message":"died","code":"asr_error"}}\n\n', "", "data: {\n\n"];
  await withServer(
    (response) => response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8" }).end(`: keep-alive\n\n${delta}${ends.shift()}`),
    async (one, requests) => {
      assert.deepEqual(await one.transcribe(new Uint8Array(1)), { text: "Hello", raw: done });
      assert.ok(requests[0].body.toString().includes('name="stream"\r\n\r\ntrue\r\n'));
      await assert.rejects(one.transcribe(new Uint8Array(1)), { code: "asr_error", message: "died" });
      await assert.rejects(one.transcribe(new Uint8Array(1)), { code: "provider_error", message: /interrupted/ });
      await assert.rejects(one.transcribe(new Uint8Array(1)), { code: "provider_error", message: /not one of a transcription/ });
    },
  );
});

test("a WAV file that was streamed gets its sizes", async () => {
  const wav = Buffer.alloc(48);
  wav.write("RIFF\xff\xff\xff\xffWAVEfmt \x10\x00\x00\x00", "latin1");
  wav.write("data\xff\xff\xff\xff", 36, "latin1");
  await withServer(
    (response) => response.writeHead(200).end(wav),
    async (one) => {
      const audio = Buffer.from(await one.speak("Hi", { model: "v" }));
      assert.deepEqual([audio.readUInt32LE(4), audio.readUInt32LE(40)], [40, 4]);
    },
  );
});

test("speak sends other fields of the request", async () => {
  await withServer(
    (response) => response.end("audio"),
    async (one, requests) => {
      const options = { model: "v", format: "mp3", instructions: "Whisper.", timeoutMs: 9000, signal: undefined };
      await one.speak("Hi", options);
      for await (const part of one.speakStream("Hi", options)) void part;
      const body = { model: "v", input: "Hi", voice: "alloy", response_format: "mp3", instructions: "Whisper." };
      assert.deepEqual(requests.map((each) => JSON.parse(each.body)), [body, body]);
    },
  );
});

test("a streamed response has the parts of its tool calls", async () => {
  const items = [
    { type: "reasoning" },
    { type: "function_call", call_id: "call_1", name: "get_weather" },
    { type: "custom_tool_call", call_id: "call_2", name: "run_code" },
  ];
  const events = [
    ...items.map((item, output_index) => ({ type: "response.output_item.added", output_index, item })),
    { type: "response.function_call_arguments.delta", output_index: 1, delta: "{}" },
    { type: "response.custom_tool_call_input.delta", output_index: 2, delta: "1 + 1" },
  ];
  await withServer(
    (response) => response.end(events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("") + COMPLETED),
    async (one) => {
      const calls = [];
      for await (const { toolCall } of one.responses("Hi", { stream: true })) if (toolCall) calls.push(toolCall);
      const [first, second] = [{ index: 0, id: "call_1", name: "get_weather" }, { index: 1, id: "call_2", name: "run_code" }];
      const expected = [{ ...first, argumentsJson: "" }, { ...second, argumentsJson: "" }, { ...first, argumentsJson: "{}" }, { ...second, argumentsJson: "1 + 1" }];
      assert.deepEqual(calls, expected);
    },
  );
});

test("a stream names the provider that the gateway chose", async () => {
  await withServer(
    (response) => response.writeHead(200, { "x-svc-provider": "one" }).end(`${HELLO}${STOP}data: [DONE]\n\n`),
    async (one) => {
      const stream = one.chat("Hi", { stream: true });
      await stream.result();
      assert.equal(stream.provider, "one");
    },
  );
});

test("responses that are something else are GatewayFailed", async () => {
  for (const value of [null, [], {}, { choices: [] }, { data: 1 }, { data: [{}] }, "text"]) {
    await withServer(
      (response) => json(response, 200, value),
      async (one) => {
        await assert.rejects(one.chat("Hi"), GatewayFailed);
        await assert.rejects(one.responses("Hi"), GatewayFailed);
        await assert.rejects(one.embed(["a", "b"]), GatewayFailed);
        if (!(value && value.data && value.data[0])) await assert.rejects(one.models(), GatewayFailed);
        await assert.rejects(one.transcribe(new Uint8Array(1)), GatewayFailed);
        await assert.rejects(one.chat("Hi", { stream: true }).result(), GatewayFailed);
        await assert.rejects(one.responses("Hi", { stream: true }).result(), GatewayFailed);
      },
    );
  }
});

test("a stream that ends too early has the request's id, and one of a web page names the cause", async () => {
  const event = `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content: "Hel" } }] })}\n\n`;
  await withServer(
    (response, number) => {
      response.writeHead(200, { "content-type": number === 3 ? "text/html" : "text/event-stream", "x-request-id": "req_1" });
      if (number === 1) response.write(event, () => response.destroy());
      else response.end(number === 2 ? event : "<html>");
    },
    async (one) => {
      const hasId = (kind) => (error) => error instanceof kind && error.requestId === "req_1";
      await assert.rejects(one.chat("Hi", { stream: true }).result(), hasId(GatewayFailed));
      await assert.rejects(one.chat("Hi", { stream: true }).result(), hasId(ProviderFailed));
      await assert.rejects(one.chat("Hi", { stream: true }).result(), (error) => hasId(GatewayFailed)(error) && error.message.includes("gateway's"));
    },
  );
});

/** An XMLHttpRequest over Node's fetch, as React Native has it: text that grows, and progress. */
class FakeXhr {
  readyState = 0;
  status = 0;
  responseText = "";
  #headers = {};
  #controller = new AbortController();
  open(method, url) {
    Object.assign(this, { method, url });
  }
  setRequestHeader(name, value) {
    this.#headers[name] = value;
  }
  getResponseHeader(name) {
    return this.response.headers.get(name);
  }
  abort() {
    this.#controller.abort();
    this.onabort?.();
  }
  async send(body) {
    try {
      this.response = await realFetch(this.url, { method: this.method, headers: this.#headers, body, signal: this.#controller.signal });
      this.status = this.response.status;
      this.readyState = 2;
      this.onreadystatechange?.();
      const decoder = new TextDecoder();
      for await (const part of this.response.body) {
        this.responseText += decoder.decode(part, { stream: true });
        this.onprogress?.();
      }
      this.readyState = 4;
      this.onload?.();
    } catch {
      if (!this.#controller.signal.aborted) this.onerror?.();
    }
  }
}
const realFetch = globalThis.fetch;

/** Run with the globals of React Native: XMLHttpRequest, and a fetch whose responses have no body to read. */
async function asReactNative(run) {
  const { Response } = globalThis;
  globalThis.XMLHttpRequest = FakeXhr;
  globalThis.Response = class {};
  globalThis.fetch = async (...args) => {
    const response = await realFetch(...args);
    return { status: response.status, headers: response.headers, arrayBuffer: () => response.arrayBuffer() };
  };
  try {
    await run();
  } finally {
    delete globalThis.XMLHttpRequest;
    Object.assign(globalThis, { Response, fetch: realFetch });
  }
}

test("without a streaming fetch, a stream comes through XMLHttpRequest", { skip }, async () => {
  await play("stream in single bytes", "whole");
  await asReactNative(async () => {
    const parts = [];
    for await (const chunk of client().chat("Hi", { stream: true })) parts.push(chunk.text);
    assert.equal(parts.join(""), "Hello to all of you 🌍");
    assert.ok(parts.filter(Boolean).length > 2);
    assert.equal((await client().chat("Hi")).text, "Hello");
  });
});

for (const script of ["reset", "without finish reason", "error event"]) {
  test(`XMLHttpRequest: a stream that ends with "${script}" throws`, { skip }, async () => {
    await play(script);
    await asReactNative(() => assert.rejects(client().chat("Hi", { stream: true }).result(), SvcError));
  });
}

test("XMLHttpRequest: errors and aborts are those of fetch", { skip }, async () => {
  await play("400", "stalled");
  await asReactNative(async () => {
    await assert.rejects(client().chat("Hi", { stream: true }).result(), InvalidRequest);
    const controller = new AbortController();
    const stream = client().chat("Hi", { stream: true, signal: controller.signal });
    await assert.rejects(async () => {
      for await (const chunk of stream) if (chunk.text) controller.abort();
    }, { name: "AbortError" });
  });
});
