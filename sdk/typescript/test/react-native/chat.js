/** Chats: whole, streamed through XMLHttpRequest, streamed with the app's own `fetch`, and all that goes wrong. */

import { AuthenticationFailed, GatewayFailed, InvalidRequest, ModelNotFound, ProviderFailed, RateLimited, SvcError, init, setApiKey, setGatewayUrl, tool, Client } from "@svc/client";
import { Client as ChatClient } from "@svc/client/chat";
import { equal, ok, rejects, test, until } from "./assert.js";
import { client, given, play, received } from "./gateway.js";
import { streamingFetch } from "./streaming-fetch.js";

const TEXT = "Hello to all of you 🌍";
const WEATHER = { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } }, required: ["city"] } };

test("the globals are those of React Native", async () => {
  for (const name of ["Buffer", "ReadableStream", "TextDecoder", "crypto"]) equal(typeof globalThis[name], "undefined");
  ok(HermesInternal.getRuntimeProperties()["OSS Release Version"], "the engine is Hermes");
  equal([globalThis.process.versions, navigator.product], [undefined, "ReactNative"]);
  ok(!("body" in Response.prototype), "the global `fetch` cannot stream");
});

test("a chat returns a complete response", async () => {
  await play("whole", "whole");
  const result = await client().chat("Hi", { temperature: 0.5 });
  equal([result.text, result.finishReason, result.usage.totalTokens], ["Hello", "stop", 18]);
  ok(result.requestId, "there is a request id");
  equal((await new ChatClient({ gatewayUrl: given.gatewayUrl, apiKey: given.key }).chat("Hi")).text, "Hello");
  equal(JSON.parse((await received())[0].body).temperature, 0.5);
});

test("init, setGatewayUrl and setApiKey configure later clients", async () => {
  try {
    init({ gatewayUrl: "http://elsewhere:1", apiKey: "wrong" });
    setGatewayUrl(given.gatewayUrl);
    setApiKey(given.key);
    await play("whole");
    equal((await new Client().chat("Hi")).text, "Hello");
  } finally {
    init();
  }
});

for (const [how, options] of [
  ["XMLHttpRequest", {}],
  ["a fetch that streams", { fetch: streamingFetch }],
]) {
  for (const script of ["stream", "stream in single bytes"]) {
    test(`${how}: a chat streams: ${script}`, async () => {
      await play(script);
      const stream = client(options).chat("Hi", { stream: true });
      const chunks = [];
      for await (const chunk of stream) chunks.push(chunk);
      equal([chunks.map((chunk) => chunk.text).join(""), stream.text], [TEXT, TEXT]);
      ok(chunks.length > 3, "the text arrives in parts");
      equal([stream.finishReason, (await stream.result()).usage.totalTokens], ["stop", 18]);
    });
  }

  for (const script of ["reset", "closed", "without finish reason", "error event", "invalid event"]) {
    test(`${how}: a stream that ends with "${script}" throws and is never complete`, async () => {
      await play(script);
      const stream = client(options).chat("Hi", { stream: true });
      let text = "";
      const iterate = async () => {
        for await (const chunk of stream) text += chunk.text;
      };
      await rejects(iterate(), SvcError);
      ok(TEXT.startsWith(text), `${text} is the start of the text`);
      equal(stream.finishReason, undefined);
      await rejects(stream.result(), SvcError);
    });
  }

  test(`${how}: a server that is gone in the middle of a stream throws`, async () => {
    for (const path of ["cut", "short", "half"]) {
      const stream = new Client({ gatewayUrl: `${given.broken}/${path}`, retries: 0, ...options }).chat("Hi", { stream: true, model: "m" });
      let text = "";
      const iterate = async () => {
        for await (const chunk of stream) text += chunk.text;
      };
      await rejects(iterate(), SvcError);
      equal([text, stream.finishReason], ["Hel", undefined]);
      await rejects(stream.result(), SvcError);
    }
  });

  test(`${how}: an abort ends a stream, and the request at the provider`, async () => {
    await play("stalled");
    const controller = new AbortController();
    const stream = client(options).chat("Hi", { stream: true, signal: controller.signal });
    const iterate = async () => {
      for await (const chunk of stream) if (chunk.text) controller.abort();
    };
    await rejects(iterate(), "AbortError");
    await until(async () => (await received())[0].disconnected, "the end of the request at the provider");
  });

  test(`${how}: break cancels a stream`, async () => {
    await play("stalled");
    const stream = client(options).chat("Hi", { stream: true });
    for await (const chunk of stream) if (chunk.text) break;
    await until(async () => (await received())[0].disconnected, "the end of the request at the provider");
    await rejects(stream.result(), SvcError);
  });

  test(`${how}: a silent server is a timeout`, async () => {
    await play("silent", "stalled");
    const error = await rejects(client({ timeoutMs: 500, ...options }).chat("Hi"), GatewayFailed);
    ok(error.message.includes("timed out"), error.message);
    await rejects(client({ timeoutMs: 500, ...options }).chat("Hi", { stream: true }).result(), GatewayFailed);
  });

  for (const [script, errorClass, errorName, status] of [
    ["400", InvalidRequest, "InvalidRequest", 400],
    ["404", ModelNotFound, "ModelNotFound", 404],
    ["429", RateLimited, "RateLimited", 429],
    ["500", ProviderFailed, "ProviderFailed", 502],
    ["not JSON", ProviderFailed, "ProviderFailed", 502],
  ]) {
    test(`${how}: a provider's ${script} is ${errorName}`, async () => {
      for (const stream of [false, true]) {
        await play(script);
        const response = client(options).chat("Hi", { stream, model: "gpt-4o-mini" });
        const error = await rejects(stream ? response.result() : response, errorClass);
        equal([error.name, error.status], [errorName, status]);
        ok(error.requestId, "there is a request id");
      }
    });
  }
}

test("a wrong key, and an address without a gateway", async () => {
  equal((await rejects(client({ apiKey: "wrong" }).chat("Hi"), AuthenticationFailed)).code, "authentication_error");
  for (const stream of [false, true]) {
    const response = new Client({ gatewayUrl: "http://127.0.0.1:9", apiKey: "k", retries: 0 }).chat("Hi", { stream });
    await rejects(stream ? response.result() : response, GatewayFailed);
  }
});

test("a request is sent again after a 429 and after a lost connection", async () => {
  const one = new Client({ gatewayUrl: `${given.broken}/retry`, retries: 2 });
  equal((await one.chat("Hi", { model: "m" })).text, "third");
  await rejects(new Client({ gatewayUrl: `${given.broken}/never`, retries: 2 }).chat("Hi", { model: "m" }), RateLimited);
});

test("the key function is asked again once after a 401", async () => {
  const keys = ["expired", given.key];
  let calls = 0;
  const one = client({ apiKey: async () => keys[Math.min(calls++, 1)] });
  await play("whole", "stream");
  equal((await one.chat("Hi")).text, "Hello");
  equal((await one.chat("Hi", { stream: true }).result()).text, TEXT);
  equal(calls, 2);
});

test("tool calls and parsed responses have values", async () => {
  const weather = tool(WEATHER);
  await play("tools", "tool stream", "structured", "structured wrongly");
  const result = await client().chat("Weather?", { tools: [weather] });
  equal(result.toolCalls[0].arguments, { city: "Oslo", days: 2 });
  const stream = client().chat("Weather?", { tools: [weather], stream: true });
  await stream.result();
  equal(stream.toolCalls[0].arguments, { city: "Oslo", days: 2 });
  const options = { schema: WEATHER.parameters };
  equal((await client().chat("Where?", options)).parsed, { city: "Oslo", days: 2 });
  const wrong = await client().chat("Where?", options);
  const error = await rejects((async () => wrong.parsed)(), ProviderFailed);
  ok(error.message.includes("days"), error.message);
});
