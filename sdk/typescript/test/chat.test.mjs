import assert from "node:assert/strict";
import { test } from "node:test";
import { AuthenticationFailed, GatewayFailed, InvalidRequest, ModelNotFound, ProviderFailed, RateLimited, SvcError, init, setApiKey, setGatewayUrl, tool, Client } from "@svc/client";
import { client, gatewayUrl, key, play, received, skip, until, WEATHER } from "./gateway.mjs";

const TEXT = "Hello to all of you 🌍";

test("chat returns a complete response", { skip }, async () => {
  await play("whole");
  const result = await client().chat("Hi", { temperature: 0.5 });
  assert.equal(result.text, "Hello");
  assert.deepEqual(result.usage, { promptTokens: 11, completionTokens: 7, totalTokens: 18 });
  assert.equal(result.finishReason, "stop");
  assert.ok(result.requestId);
  assert.deepEqual(result.message, { role: "assistant", content: "Hello" });
  const [request] = await received();
  assert.deepEqual(request.json(), { model: "gpt-4o-mini", messages: [{ role: "user", content: "Hi" }], temperature: 0.5 });
});

for (const script of ["stream", "stream in single bytes"]) {
  test(`chat streams: ${script}`, { skip }, async () => {
    await play(script);
    const stream = client().chat("Hi", { stream: true });
    const parts = [];
    for await (const chunk of stream) parts.push(chunk);
    assert.equal(parts.map((chunk) => chunk.text).join(""), TEXT);
    assert.equal(stream.text, TEXT);
    assert.equal(parts.at(-2).finishReason, "stop");
    assert.equal(parts.at(-1).usage.totalTokens, 18);
    assert.ok(stream.requestId);
    assert.equal((await stream.result()).text, TEXT);
  });
}

for (const script of ["reset", "closed", "without finish reason", "error event", "invalid event"]) {
  test(`a stream that ends with "${script}" throws and is never complete`, { skip }, async () => {
    await play(script);
    const stream = client().chat("Hi", { stream: true });
    let text = "";
    await assert.rejects(async () => {
      for await (const chunk of stream) text += chunk.text;
    }, SvcError);
    assert.ok(TEXT.startsWith(text));
    assert.equal(stream.finishReason, undefined);
    await assert.rejects(stream.result(), SvcError);
  });
}

for (const [script, errorClass, status] of [
  ["400", InvalidRequest, 400],
  ["404", ModelNotFound, 404],
  ["429", RateLimited, 429],
  ["500", ProviderFailed, 502],
  ["not JSON", ProviderFailed, 502],
]) {
  test(`a provider's ${script} is ${errorClass.name}`, { skip }, async () => {
    for (const stream of [false, true]) {
      await play(script);
      const send = async () => {
        const response = client().chat("Hi", { stream, model: "gpt-4o-mini" });
        return stream ? response.result() : response;
      };
      await assert.rejects(send, (error) => {
        assert.ok(error instanceof errorClass, String(error));
        assert.equal(error.name, errorClass.name);
        assert.equal(error.status, status);
        assert.ok(error.requestId);
        return true;
      });
    }
  });
}

test("a wrong key is AuthenticationFailed", { skip }, async () => {
  await assert.rejects(client({ apiKey: "wrong" }).chat("Hi"), (error) => error instanceof AuthenticationFailed && error.code === "authentication_error" && error.status === 401);
});

test("the key function is asked again once after a 401", { skip }, async () => {
  const keys = ["expired", key];
  let calls = 0;
  const one = client({ apiKey: async () => keys[Math.min(calls++, 1)] });
  await play("whole", "whole");
  assert.equal((await one.chat("Hi")).text, "Hello");
  assert.equal((await one.chat("Hi")).text, "Hello");
  assert.equal(calls, 2);
  calls = -2;
  await assert.rejects(client({ apiKey: () => (calls++, "wrong") }).chat("Hi"), AuthenticationFailed);
  assert.equal(calls, 0);
});

test("requests at the same time share a new key", { skip }, async () => {
  let calls = 0;
  const one = client({ apiKey: async () => (calls++ ? key : "expired") });
  await play("whole", "whole", "whole");
  const results = await Promise.all([one.chat("Hi"), one.chat("Hi"), one.chat("Hi")]);
  assert.deepEqual(results.map((each) => each.text), ["Hello", "Hello", "Hello"]);
  assert.equal(calls, 2);
});

test("tool calls have typed arguments", { skip }, async () => {
  const weather = tool(WEATHER);
  await play("tools", "tool stream");
  const result = await client().chat("Weather?", { tools: [weather] });
  const stream = client().chat("Weather?", { tools: [weather], stream: true });
  let json = "";
  for await (const chunk of stream) json += chunk.toolCall?.argumentsJson ?? "";
  for (const calls of [result.toolCalls, stream.toolCalls]) {
    assert.equal(calls.length, 1);
    assert.equal(calls[0].name, "get_weather");
    assert.deepEqual(calls[0].arguments, { city: "Oslo", days: 2 });
  }
  assert.deepEqual(JSON.parse(json), { city: "Oslo", days: 2 });
  assert.equal(result.message.tool_calls[0].id, "call_1");
  assert.deepEqual((await received())[0].json().tools, [{ type: "function", function: WEATHER }]);
});

test("a structured response is parsed and checked", { skip }, async () => {
  await play("structured", "structured wrongly");
  const options = { schema: WEATHER.parameters };
  assert.deepEqual((await client().chat("Where?", options)).parsed, { city: "Oslo", days: 2 });
  const wrong = await client().chat("Where?", options);
  assert.throws(() => wrong.parsed, (error) => error instanceof ProviderFailed && error.message.includes("days"));
  assert.equal((await received())[0].json().response_format.type, "json_schema");
});

test("an abort ends a stream and the request at the provider", { skip }, async () => {
  await play("stalled");
  const controller = new AbortController();
  const stream = client().chat("Hi", { stream: true, signal: controller.signal });
  await assert.rejects(async () => {
    for await (const chunk of stream) if (chunk.text) controller.abort();
  }, { name: "AbortError" });
  await until(async () => (await received())[0].disconnected, "the end of the request at the provider");
});

test("break cancels a stream", { skip }, async () => {
  await play("stalled");
  const stream = client().chat("Hi", { stream: true });
  for await (const chunk of stream) if (chunk.text) break;
  await until(async () => (await received())[0].disconnected, "the end of the request at the provider");
  await assert.rejects(stream.result(), SvcError);
});

test("an aborted signal sends nothing", { skip }, async () => {
  await play();
  await assert.rejects(client().chat("Hi", { signal: AbortSignal.abort() }), { name: "AbortError" });
  const reason = new Error("leaving");
  await assert.rejects(client().chat("Hi", { stream: true, signal: AbortSignal.abort(reason) }).result(), reason);
  assert.equal((await received()).length, 0);
});

test("an abort does not wait for the key function", async () => {
  const controller = new AbortController();
  const call = client({ gatewayUrl: "http://127.0.0.1:9", apiKey: () => new Promise(() => {}) }).chat("Hi", { signal: controller.signal });
  controller.abort();
  await assert.rejects(call, { name: "AbortError" });
});

test("a silent server is a timeout, before the response and in a stream", { skip }, async () => {
  await play("silent", "stalled");
  await assert.rejects(client({ timeoutMs: 300 }).chat("Hi"), (error) => error instanceof GatewayFailed && error.message.includes("timed out"));
  await assert.rejects(client({ timeoutMs: 300 }).chat("Hi", { stream: true }).result(), GatewayFailed);
});

test("an address without a gateway is GatewayFailed", async () => {
  await assert.rejects(new Client({ gatewayUrl: "http://127.0.0.1:9", apiKey: "k", retries: 0 }).chat("Hi"), (error) => error instanceof GatewayFailed && !error.message.includes("undefined"));
});

test("init, setGatewayUrl and setApiKey configure later clients", { skip }, async () => {
  try {
    init({ gatewayUrl: "http://elsewhere:1", apiKey: "wrong" });
    setGatewayUrl(gatewayUrl);
    setApiKey(key);
    await play("whole");
    const one = new Client();
    assert.equal(one.gatewayUrl, `${gatewayUrl}/v1`);
    assert.equal((await one.chat("Hi")).text, "Hello");
  } finally {
    init();
  }
});

test("options that are wrong name the field", () => {
  for (const [options, param] of [
    [{ gatewayUrl: "ftp://x" }, "gatewayUrl"],
    [{ gatewayUrl: "http://user:secret@host" }, "gatewayUrl"],
    [{ apiKey: "a b" }, "apiKey"],
    [{ apiKey: 7 }, "apiKey"],
    [{ retries: -1 }, "retries"],
    [{ timeoutMs: 0 }, "timeoutMs"],
    [{ baseUrl: "http://host" }, "baseUrl"],
    ["http://host", "string"],
  ]) {
    assert.throws(() => new Client(options), (error) => error instanceof InvalidRequest && error.param === param && !error.message.includes("secret"));
  }
  for (const options of ["http://host", { baseUrl: "http://host" }]) assert.throws(() => init(options), InvalidRequest);
});

test("a request with a wrong timeout is rejected", async () => {
  const one = new Client({ gatewayUrl: "http://127.0.0.1:9", apiKey: "k" });
  for (const timeoutMs of [0, -1, "x"]) await assert.rejects(one.chat("Hi", { timeoutMs }), (error) => error.param === "timeoutMs");
});

test("a page can name the gateway by a path of its own address", () => {
  globalThis.location = { origin: "https://app.example" };
  try {
    assert.equal(new Client({ gatewayUrl: "/gateway" }).gatewayUrl, "https://app.example/gateway/v1");
    assert.throws(() => new Client({ gatewayUrl: "//other.example" }), InvalidRequest);
  } finally {
    delete globalThis.location;
  }
  assert.throws(() => new Client({ gatewayUrl: "/gateway" }), InvalidRequest);
});

test("models lists what the key may use", { skip }, async () => {
  const models = await client().models();
  assert.ok(models.some((model) => model.id === "gpt-4o-mini" && model.ownedBy === "openai" && model.contextWindow > 0));
});
