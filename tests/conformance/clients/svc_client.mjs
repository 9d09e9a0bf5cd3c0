// Common uses of the TypeScript SDK of this repository.
import assert from "node:assert/strict";
import { AuthenticationFailed, Client, InvalidRequest, ModelNotFound, PermissionDenied, ProviderFailed, RateLimited, tool } from "@svc/client";
import { ARGUMENTS, CODES, EMBEDDINGS, GPT, KEY, LOCAL, TEXTS, TOOL_SCHEMA, URL, WEAK_KEY, WEATHER, WORDS, check, checkVectors, run, sleep, thrown } from "./report.mjs";

const make = (apiKey) => new Client({ gatewayUrl: URL, apiKey, retries: 0 });
const client = make(KEY);
const tools = ["weather", "climate"].map((name) => tool({ name, parameters: TOOL_SCHEMA }));

const whole = async (model) => {
  const result = await client.chat("Hi", { model });
  assert.equal(result.text, WORDS);
  assert.equal(result.finishReason, "stop");
  assert.ok(result.usage.totalTokens > 0);
};
check("JSON", whole);

check("stream", async (model) => {
  const stream = client.chat("Hi", { model, stream: true });
  const parts = [];
  for await (const chunk of stream) if (chunk.text) parts.push(chunk.text);
  assert.equal(parts.join(""), WORDS);
  assert.equal(stream.finishReason, "stop");
  assert.ok(parts.length > 5);
});

check("usage in a stream", async (model) => {
  const result = await client.chat("Hi", { model, stream: true }).result();
  assert.ok(result.usage.totalTokens > 0);
});

check("tools", async (model) => {
  const question = { role: "user", content: WEATHER };
  const { message, finishReason, toolCalls } = await client.chat([question], { model, tools });
  assert.equal(finishReason, "tool_calls");
  assert.equal(toolCalls[0].name, "weather");
  assert.deepEqual(toolCalls[0].arguments, ARGUMENTS);
  const rest = [message, { role: "tool", tool_call_id: toolCalls[0].id, content: "rain" }];
  assert.equal((await client.chat([question, ...rest], { model, tools })).text, WORDS);
});

check("tools in a stream", async (model) => {
  const { toolCalls } = await client.chat(`[[two]] ${WEATHER}`, { model, tools, stream: true }).result();
  assert.deepEqual(toolCalls.map((call) => call.name), ["weather", "climate"]);
  for (const call of toolCalls) assert.deepEqual(call.arguments, ARGUMENTS);
  assert.notEqual(toolCalls[0].id, toolCalls[1].id);
});

check("structured output", async (model) => {
  const properties = { city: { type: "string" }, days: { type: "integer" }, dry: { type: "boolean" } };
  const schema = { type: "object", properties, required: ["city", "days", "dry"], additionalProperties: false };
  const { parsed } = await client.chat(WEATHER, { model, schema });
  assert.deepEqual(parsed, { ...ARGUMENTS, dry: true });
});

check("errors", async (model) => {
  const kinds = {
    401: AuthenticationFailed,
    403: PermissionDenied,
    404: ModelNotFound,
    "[[400]]": InvalidRequest,
    "[[429]]": RateLimited,
    "[[500]]": ProviderFailed,
  };
  for (const [asked, kind] of Object.entries(kinds)) {
    const one = make({ 401: "wrong", 403: WEAK_KEY }[asked] ?? KEY);
    for (const stream of [false, true]) {
      const call = one.chat(asked, { model: asked === "404" ? "no-such-model" : model, stream });
      const error = await thrown(stream ? call.result() : call);
      assert.ok(error instanceof kind, `${asked} is ${error.constructor.name}`);
      assert.deepEqual([error.status, error.code], CODES[asked]);
      assert.ok(error.requestId);
    }
  }
});

check("cut stream", async (model) => {
  for (const how of ["[[cut]]", "[[half]]", "[[broken]]"]) {
    const stream = client.chat(how, { model, stream: true });
    const error = await thrown(stream.result());
    assert.ok(error instanceof ProviderFailed, `${how} is ${error.constructor.name}`);
    assert.equal(stream.finishReason, undefined);
  }
});

check("cancellation", async (model) => {
  const stop = new AbortController();
  const stream = client.chat("[[slow]]", { model, stream: true, signal: stop.signal });
  const reading = (async () => {
    for await (const chunk of stream) if (chunk.text) stop.abort();
  })();
  assert.equal((await thrown(reading)).name, "AbortError");
  await sleep(500);
  await whole(model);
});

check("models", async (model) => assert.ok((await client.models()).some((one) => one.id === model)), [GPT]);

check("Responses API", async (model) => {
  assert.equal((await client.responses("Hi", { model })).text, WORDS);
  const stream = client.responses("Hi", { model, stream: true });
  let text = "";
  for await (const event of stream) text += event.text;
  assert.equal(text, WORDS);
  assert.equal((await stream.result()).status, "completed");
  for (const how of ["[[cut]]", "[[half]]", "[[broken]]"]) {
    const error = await thrown(client.responses(how, { model, stream: true }).result());
    assert.ok(error instanceof ProviderFailed, `${how} is ${error.constructor.name}`);
  }
});

check(
  "embedded model",
  async (model) => {
    const options = { model, max_tokens: 20 };
    assert.ok((await client.chat("Say hello.", options)).text);
    assert.ok((await client.chat("Say hello.", { ...options, stream: true }).result()).text);
  },
  [LOCAL],
);

check(
  "embeddings",
  async (model) => {
    checkVectors((await client.embed(TEXTS, { model })).vectors, model);
    assert.equal((await thrown(client.embed("x", { model: GPT }))).param, "model");
  },
  EMBEDDINGS,
);

await run();
