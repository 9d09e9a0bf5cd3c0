/** The other calls of the gateway. */

import { SvcError, image } from "@svc/client";
import { equal, ok, rejects, test } from "./assert.js";
import { client, given, play, received } from "./gateway.js";

test("responses returns a complete response, and streams", async () => {
  await play();
  const result = await client().responses("Hi", { instructions: "Be brief." });
  ok(result.text && result.usage.totalTokens > 0, "there is a text");
  const stream = client().responses("Hi", { stream: true });
  let text = "";
  for await (const event of stream) text += event.text;
  equal((await stream.result()).text, text);
});

test("a stream of the Responses API that is cut throws", async () => {
  await play("responses reset");
  await rejects(client().responses("Hi", { stream: true }).result(), SvcError);
});

test("embed returns a vector for each text", async () => {
  await play();
  equal((await client().embed(["a", "b"], { dimensions: 4 })).vectors, [[0, 0.5, 0.5, 0.5], [1, 0.5, 0.5, 0.5]]);
});

test("speak returns audio, whole and in parts", async () => {
  await play();
  const options = { model: "tts-1", format: "mp3" };
  const audio = await client().speak("Hello", options);
  let size = 0;
  for await (const part of client().speakStream("Hello", options)) size += part.length;
  equal([Array.from(audio.subarray(0, 3)), size], [[0x49, 0x44, 0x33], audio.length]);
});

test("transcribe sends a file of the phone, bytes, and a Blob", async () => {
  const one = client({ timeoutMs: 120_000 });
  const blob = await (await fetch(given.clipUrl)).blob();
  const bytes = new Uint8Array(await (await fetch(given.clipUrl)).arrayBuffer());
  for (const audio of [{ uri: given.clip, name: "clip.wav", type: "audio/wav" }, bytes, bytes.buffer, blob]) {
    const { text } = await one.transcribe(audio, { model: given.speechModel });
    ok(/lazy dog/i.test(text), text);
  }
});

test("models lists what the key may use", async () => {
  ok((await client().models()).some((model) => model.id === "gpt-4o-mini"), "the model is listed");
});

test("an image is sent as a data URL", async () => {
  await play("whole");
  await client().chat([{ role: "user", content: [{ type: "text", text: "What is it?" }, image(Uint8Array.of(1, 2, 3))] }]);
  equal(JSON.parse((await received())[0].body).messages[0].content[1].image_url.url, "data:image/png;base64,AQID");
});
