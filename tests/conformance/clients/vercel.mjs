// The Vercel AI SDK: its openai-compatible provider for one model, its Anthropic provider for the other.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { ARGUMENTS, CLAUDE, CODES, EMBEDDINGS, GPT, KEY, LOCAL, TEXTS, URL, WEAK_KEY, WEATHER, WORDS, check, checkVectors, run, sleep, thrown } from "./report.mjs";

const openai = (apiKey) =>
  createOpenAICompatible({ name: "svc", baseURL: `${URL}/v1`, apiKey, includeUsage: true, supportsStructuredOutputs: true });
const anthropic = (apiKey) => createAnthropic({ baseURL: `${URL}/v1`, apiKey });
// each model through each of the two providers
const ways = { openai, anthropic };
const model = (named, apiKey = KEY) => ways[named.split(" ")[1]](apiKey)(named.split(" ")[0]);
const ALL = [`${GPT} openai`, `${CLAUDE} openai`, `${GPT} anthropic`, `${CLAUDE} anthropic`];
const forecast = z.object({ city: z.string(), days: z.number().int() });
const weather = tool({ description: "the weather", inputSchema: forecast, execute: async () => "rain" });
const each = (name, one) => check(name, one, ALL);
const quiet = { onError: () => {} };

const whole = async (named) => {
  const answer = await generateText({ model: model(named), prompt: "Hi" });
  assert.deepEqual([answer.text, answer.finishReason], [WORDS, "stop"]);
  assert.ok(answer.usage.totalTokens > 0);
};
each("JSON", whole);

each("stream", async (named) => {
  const answer = streamText({ model: model(named), prompt: "Hi", ...quiet });
  const pieces = [];
  for await (const piece of answer.textStream) pieces.push(piece);
  assert.equal(pieces.join(""), WORDS);
  assert.ok(pieces.length > 5);
  assert.equal(await answer.finishReason, "stop");
});

each("usage in a stream", async (named) => {
  const answer = streamText({ model: model(named), prompt: "Hi", ...quiet });
  await answer.consumeStream();
  assert.ok((await answer.usage).totalTokens > 0);
});

each("tools", async (named) => {
  const answer = await generateText({ model: model(named), prompt: WEATHER, tools: { weather }, stopWhen: stepCountIs(3) });
  assert.deepEqual(answer.steps[0].toolCalls[0].input, ARGUMENTS);
  assert.equal(answer.text, WORDS);
});

each("tools in a stream", async (named) => {
  const asked = { prompt: `[[two]] ${WEATHER}`, tools: { weather, climate: weather }, stopWhen: stepCountIs(3) };
  const answer = streamText({ model: model(named), ...asked, ...quiet });
  await answer.consumeStream();
  const calls = (await answer.steps)[0].toolCalls;
  assert.deepEqual(calls.map((call) => [call.toolName, call.input]), [["weather", ARGUMENTS], ["climate", ARGUMENTS]]);
  assert.equal(await answer.text, WORDS);
});

each("structured output", async (named) => {
  const output = Output.object({ schema: forecast });
  assert.deepEqual((await generateText({ model: model(named), prompt: WEATHER, output })).output, ARGUMENTS);
});

each("errors", async (named) => {
  for (const [asked, [status, code]] of Object.entries(CODES)) {
    const key = { 401: "wrong", 403: WEAK_KEY }[asked] ?? KEY;
    const name = asked === "404" ? named.replace(/^\S+/, "no-such-model") : named;
    const error = await thrown(generateText({ model: model(name, key), prompt: asked, maxRetries: 0 }));
    assert.ok(APICallError.isInstance(error), `${asked} is ${error.name}`);
    assert.equal(error.statusCode, status);
    if (named.endsWith("openai")) assert.equal(JSON.parse(error.responseBody).error.code, code);
  }
});

each("cut stream", async (named) => {
  for (const how of ["[[cut]]", "[[half]]", "[[broken]]"]) {
    const parts = [];
    const answer = streamText({ model: model(named), prompt: how, maxRetries: 0, ...quiet });
    for await (const part of answer.fullStream) parts.push(part);
    assert.ok(parts.some((part) => part.type === "error"), `${how} went unnoticed`);
    const last = parts.findLast((part) => part.type === "finish");
    assert.ok(!last || last.finishReason === "error" || last.finishReason === "other", `${how}: ${last?.finishReason}`);
  }
});

each("cancellation", async (named) => {
  const stop = new AbortController();
  const answer = streamText({ model: model(named), prompt: "[[slow]]", abortSignal: stop.signal, ...quiet });
  for await (const piece of answer.textStream) if (piece) break;
  stop.abort();
  await sleep(500);
  await whole(named);
});

check(
  "embedded model",
  async (named) => {
    const asked = { model: openai(KEY)(named), prompt: "Say hello.", maxOutputTokens: 20 };
    assert.ok((await generateText(asked)).text);
    assert.ok(await streamText({ ...asked, ...quiet }).text);
  },
  [LOCAL],
);

check(
  "embeddings",
  async (named) => {
    const answer = await embedMany({ model: openai(KEY).textEmbeddingModel(named), values: TEXTS });
    checkVectors(answer.embeddings, named);
    assert.ok(answer.usage.tokens > 0);
  },
  EMBEDDINGS,
);

await run();
