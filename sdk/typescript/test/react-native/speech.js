/** Live speech over React Native's WebSocket. */

import { AudioQueue, AuthenticationFailed, Client, Resampler, decodeBase64 } from "@svc/client";
import { equal, ok, rejects, test, wait } from "./assert.js";
import { client, given } from "./gateway.js";

test("live transcribes speech that a recorder gives as base64", async () => {
  const session = await client().live({ language: "en" });
  const queue = new AudioQueue();
  const piping = session.pipe(queue);
  const pcm = given.pcm;
  for (let at = 0; at < pcm.length; at += 8000) queue.push(decodeBase64(pcm.slice(at, at + 8000)));
  queue.end();
  await piping;
  await session.finish();
  await session.close();
  let text = "";
  for await (const event of session) if (event.type === "final") text += event.text;
  ok(/lazy dog/i.test(text), text);
});

test("live connects again, and sends the audio of the unfinished utterance again", async () => {
  const session = await new Client({ gatewayUrl: given.speech, apiKey: "good", retries: 0 }).live();
  await session.feed(new Int16Array(1600));
  equal((await session.finish()).text, "3200 bytes");
  await session.feed(new Int16Array(1600));
  await session.feed(new Int16Array(1600));
  const types = [];
  for (let event = await session.next(); event && event.type !== "reconnected"; event = await session.next()) types.push(event.type);
  ok(types.includes("reconnecting"), types.join());
  equal((await session.finish()).text, "6400 bytes");
  await session.close();
});

test("live with a wrong key throws, and with an expired key asks for a new one", async () => {
  await rejects(new Client({ gatewayUrl: given.speech, apiKey: "wrong", retries: 0 }).live(), AuthenticationFailed);
  let calls = 0;
  const session = await new Client({ gatewayUrl: given.speech, apiKey: async () => (calls++ ? "good" : "expired"), retries: 0 }).live();
  await session.close();
  equal(calls, 2);
});

test("an abort ends a session", async () => {
  const controller = new AbortController();
  const session = await new Client({ gatewayUrl: given.speech, apiKey: "good" }).live({ signal: controller.signal });
  const iterate = async () => {
    for await (const event of session) if (event.type === "ready") controller.abort();
  };
  await rejects(iterate(), "AbortError");
  await wait(0);
});

test("a recorder with 44.1 kHz is resampled to 16 kHz", async () => {
  const resampler = new Resampler(44_100);
  const samples = Float32Array.from({ length: 44_100 }, (_, at) => Math.sin((2 * Math.PI * 440 * at) / 44_100));
  const output = [...resampler.feed(samples), ...resampler.flush()];
  ok(Math.abs(output.length - 16_000) < 20, `${output.length} samples`);
  let crossings = 0;
  for (let at = 1; at < output.length; at++) if (output[at - 1] < 0 && output[at] >= 0) crossings++;
  ok(Math.abs(crossings - 440) <= 2, `${crossings} periods`);
});
