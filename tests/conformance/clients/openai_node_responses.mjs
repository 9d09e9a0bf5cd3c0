// The Responses API with openai-node.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { ARGUMENTS, CLAUDE, CODES, GPT, KEY, LLAMA, LOCAL, TOOL_SCHEMA, URL, WEAK_KEY, WEATHER, WORDS, check, run, sleep, thrown } from "./report.mjs";

const EVERY = [GPT, CLAUDE, LLAMA];
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const tools = ["weather", "climate"].map((name) => ({ type: "function", name, parameters: TOOL_SCHEMA, strict: false }));
const Forecast = z.object({ city: z.string(), days: z.number().int(), dry: z.boolean() });
const all = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};

const whole = async (model) => {
  const response = await client.responses.create({ model, input: "Hi" });
  assert.equal(response.output_text, WORDS);
  assert.equal(response.status, "completed");
  assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
};
check("JSON", whole, EVERY);

check("stream", async (model) => {
  const events = await all(await client.responses.create({ model, input: "Hi", stream: true }));
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), WORDS);
  assert.ok(deltas.length > 5);
  assert.equal(events.at(-1).type, "response.completed");
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
  const response = await client.responses.stream({ model, input: "Hi" }).finalResponse();
  assert.equal(response.output_text, WORDS);
}, EVERY);

check("usage in a stream", async (model) => {
  const events = await all(await client.responses.create({ model, input: "Hi", stream: true }));
  assert.ok(events.at(-1).response.usage.total_tokens > 0);
}, EVERY);

check("tools", async (model) => {
  const input = [{ role: "user", content: WEATHER }];
  const { output } = await client.responses.create({ model, input, tools });
  const call = output.find((item) => item.type === "function_call");
  assert.equal(call.name, "weather");
  assert.deepEqual(JSON.parse(call.arguments), ARGUMENTS);
  const result = { type: "function_call_output", call_id: call.call_id, output: "rain" };
  const again = await client.responses.create({ model, input: [...input, ...output, result], tools });
  assert.equal(again.output_text, WORDS);
}, EVERY);

check("tools in a stream", async (model) => {
  const { output } = await client.responses.stream({ model, input: `[[two]] ${WEATHER}`, tools }).finalResponse();
  const calls = output.filter((item) => item.type === "function_call");
  assert.deepEqual(calls.map((call) => call.name), ["weather", "climate"]);
  for (const call of calls) assert.deepEqual(JSON.parse(call.arguments), ARGUMENTS);
  assert.notEqual(calls[0].call_id, calls[1].call_id);
}, EVERY);

check("structured output", async (model) => {
  const text = { format: zodTextFormat(Forecast, "forecast") };
  const response = await client.responses.parse({ model, input: WEATHER, text });
  assert.deepEqual(response.output_parsed, { ...ARGUMENTS, dry: true });
}, EVERY);

check("reasoning", async (model) => {
  const include = ["reasoning.encrypted_content"];
  const input = [{ role: "user", content: `[[think]] ${WEATHER}` }];
  const { output } = await client.responses.create({ model, input, tools, include });
  const reasoning = output.find((item) => item.type === "reasoning");
  assert.equal(reasoning.summary[0].text, "Let me think.");
  assert.ok(reasoning.encrypted_content);
  const call = output.find((item) => item.type === "function_call");
  const result = { type: "function_call_output", call_id: call.call_id, output: "rain" };
  // The provider rejects the request if its own block does not come back.
  const again = await client.responses.create({ model, input: [...input, ...output, result], tools, include });
  assert.equal(again.output_text, WORDS);
}, [CLAUDE]);

check("image", async (model) => {
  const image = { type: "input_image", image_url: "data:image/png;base64,iVBORw0KGgo=", detail: "auto" };
  const content = [{ type: "input_text", text: "What is it?" }, image];
  assert.equal((await client.responses.create({ model, input: [{ role: "user", content }] })).output_text, WORDS);
}, EVERY);

check("errors", async (model) => {
  const kinds = {
    401: OpenAI.AuthenticationError,
    403: OpenAI.PermissionDeniedError,
    404: OpenAI.NotFoundError,
    "[[400]]": OpenAI.BadRequestError,
    "[[429]]": OpenAI.RateLimitError,
    "[[500]]": OpenAI.InternalServerError,
  };
  for (const [input, kind] of Object.entries(kinds)) {
    const one = client.withOptions({ apiKey: { 401: "wrong", 403: WEAK_KEY }[input] ?? KEY, maxRetries: 0 });
    for (const stream of [false, true]) {
      const named = input === "404" ? "no-such-model" : model;
      const error = await thrown(one.responses.create({ model: named, input, stream }));
      assert.ok(error instanceof kind, `${input} is ${error.constructor.name}`);
      assert.deepEqual([error.status, error.code], CODES[input]);
      assert.ok(error.requestID);
    }
  }
}, EVERY);

check("cut stream", async (model) => {
  for (const input of ["[[cut]]", "[[half]]", "[[broken]]"]) {
    let events;
    try {
      events = await all(await client.responses.create({ model, input, stream: true }));
    } catch (error) { // a reset can overtake the first events
      assert.equal(error.code, "provider_error");
      continue;
    }
    assert.equal(events.at(-1).type, "response.failed");
    assert.equal(events.at(-1).response.error.code, "provider_error");
    assert.ok(events.every((event) => event.type !== "response.completed"));
  }
}, EVERY);

check("cancellation", async (model) => {
  const stop = new AbortController();
  const stream = await client.responses.create({ model, input: "[[slow]]", stream: true }, { signal: stop.signal });
  for await (const event of stream) if (event.type === "response.output_text.delta") break;
  stop.abort();
  await sleep(500);
  await whole(model);
}, EVERY);

check("embedded model", async (model) => {
  const request = { model, input: "Say hello.", max_output_tokens: 20 };
  assert.ok((await client.responses.create(request)).output_text);
  const events = await all(await client.responses.create({ ...request, stream: true }));
  assert.ok(["response.completed", "response.incomplete"].includes(events.at(-1).type));
}, [LOCAL]);

await run();
