// Common uses of openai-node.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { ARGUMENTS, CODES, EMBEDDINGS, GPT, KEY, LOCAL, TEXTS, TOOL_SCHEMA, URL, WEAK_KEY, WEATHER, WORDS, check, checkVectors, run, sleep, thrown } from "./report.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const user = (content) => [{ role: "user", content }];
const tools = ["weather", "climate"].map((name) => ({ type: "function", function: { name, parameters: TOOL_SCHEMA } }));
const all = async (stream) => {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
};
const text = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

const whole = async (model) => {
  const answer = await client.chat.completions.create({ model, messages: user("Hi") });
  assert.equal(answer.choices[0].message.content, WORDS);
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.ok(answer.usage.total_tokens > 0);
};
check("JSON", whole);

check("stream", async (model) => {
  const chunks = await all(await client.chat.completions.create({ model, messages: user("Hi"), stream: true }));
  assert.equal(text(chunks), WORDS);
  assert.equal(chunks.at(-1).choices[0].finish_reason, "stop");
  assert.ok(chunks.length > 5);
});

check("usage in a stream", async (model) => {
  const asked = { model, messages: user("Hi"), stream: true, stream_options: { include_usage: true } };
  assert.ok((await all(await client.chat.completions.create(asked))).at(-1).usage.total_tokens > 0);
});

check("tools", async (model) => {
  const messages = user(WEATHER);
  const { message, finish_reason } = (await client.chat.completions.create({ model, messages, tools })).choices[0];
  assert.equal(finish_reason, "tool_calls");
  assert.equal(message.tool_calls[0].function.name, "weather");
  assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), ARGUMENTS);
  const rest = [message, { role: "tool", tool_call_id: message.tool_calls[0].id, content: "rain" }];
  const again = await client.chat.completions.create({ model, messages: [...messages, ...rest], tools });
  assert.equal(again.choices[0].message.content, WORDS);
});

check("tools in a stream", async (model) => {
  const running = client.chat.completions.stream({ model, messages: user(`[[two]] ${WEATHER}`), tools });
  const calls = (await running.finalChatCompletion()).choices[0].message.tool_calls;
  assert.deepEqual(calls.map((call) => call.function.name), ["weather", "climate"]);
  for (const call of calls) assert.deepEqual(JSON.parse(call.function.arguments), ARGUMENTS);
  assert.notEqual(calls[0].id, calls[1].id);
});

check("structured output", async (model) => {
  const form = zodResponseFormat(z.object({ city: z.string(), days: z.number().int(), dry: z.boolean() }), "forecast");
  const answer = await client.chat.completions.parse({ model, messages: user(WEATHER), response_format: form });
  assert.deepEqual(answer.choices[0].message.parsed, { ...ARGUMENTS, dry: true });
});

check("errors", async (model) => {
  const kinds = {
    401: OpenAI.AuthenticationError,
    403: OpenAI.PermissionDeniedError,
    404: OpenAI.NotFoundError,
    "[[400]]": OpenAI.BadRequestError,
    "[[429]]": OpenAI.RateLimitError,
    "[[500]]": OpenAI.InternalServerError,
  };
  for (const [asked, kind] of Object.entries(kinds)) {
    const one = client.withOptions({ apiKey: { 401: "wrong", 403: WEAK_KEY }[asked] ?? KEY });
    for (const stream of [false, true]) {
      const named = asked === "404" ? "no-such-model" : model;
      const error = await thrown(one.chat.completions.create({ model: named, messages: user(asked), stream }));
      assert.ok(error instanceof kind, `${asked} is ${error.constructor.name}`);
      assert.deepEqual([error.status, error.code], CODES[asked]);
      assert.ok(error.requestID);
    }
  }
});

check("cut stream", async (model) => {
  for (const how of ["[[cut]]", "[[half]]", "[[broken]]"]) {
    const stream = await client.chat.completions.create({ model, messages: user(how), stream: true });
    const error = await thrown(all(stream));
    assert.ok(error instanceof OpenAI.APIError);
    assert.equal(error.code, "provider_error");
  }
});

check("cancellation", async (model) => {
  const stop = new AbortController();
  const asked = { model, messages: user("[[slow]]"), stream: true };
  const stream = await client.chat.completions.create(asked, { signal: stop.signal });
  for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
  stop.abort();
  await sleep(500);
  await whole(model);
});

check("models", async (model) => assert.equal((await client.models.retrieve(model)).id, model), [GPT]);

check(
  "embedded model",
  async (model) => {
    const asked = { model, messages: user("Say hello."), max_tokens: 20 };
    assert.ok((await client.chat.completions.create(asked)).choices[0].message.content);
    assert.ok(text(await all(await client.chat.completions.create({ ...asked, stream: true }))));
  },
  [LOCAL],
);

check(
  "embeddings",
  async (model) => {
    const answer = await client.embeddings.create({ model, input: TEXTS });
    checkVectors(answer.data.map((row) => row.embedding), model);
    const floats = await client.embeddings.create({ model, input: TEXTS, encoding_format: "float" });
    const bits = (data) => data.map((row) => [...new Uint8Array(Float32Array.from(row.embedding).buffer)]);
    assert.deepEqual(bits(floats.data), bits(answer.data)); // `answer` was base64
    assert.equal((await thrown(client.embeddings.create({ model: GPT, input: "x" }))).param, "model");
  },
  EMBEDDINGS,
);

await run();
