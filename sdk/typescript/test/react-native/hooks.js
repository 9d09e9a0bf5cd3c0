/** The hooks of `@svc/client/react`. */

import { AudioQueue, decodeBase64 } from "@svc/client";
import { useChat, useLiveTranscript } from "@svc/client/react";
import { equal, ok, test, until } from "./assert.js";
import { client, given, play } from "./gateway.js";
import { render } from "./render.js";

test("useChat streams, keeps the conversation, and reports errors", async () => {
  await play("stream");
  const hook = await render(useChat, { client: client(), system: "Be brief." });
  await hook.current.send("Hi");
  await until(() => !hook.current.isStreaming, "the end of the response");
  equal(hook.current.messages, [
    { role: "user", content: "Hi" },
    { role: "assistant", content: "Hello to all of you 🌍" },
  ]);
  await play("error event");
  await hook.current.send("More");
  await until(() => hook.current.error, "the error");
  equal([hook.current.messages.length, hook.current.isStreaming], [4, false]);
  hook.current.clear();
  await until(() => !hook.current.messages.length && !hook.current.error, "the empty conversation");
  hook.root.unmount();
});

test("useChat stops a response", async () => {
  await play("stalled");
  const hook = await render(useChat, { client: client() });
  const sending = hook.current.send("Hi");
  await until(() => hook.current.messages.length === 2, "the first text");
  hook.current.stop();
  await sending;
  await until(() => !hook.current.isStreaming, "the end");
  equal(hook.current.error, undefined);
  hook.root.unmount();
});

test("useLiveTranscript shows what is said", async () => {
  const source = async () => {
    const queue = new AudioQueue();
    for (let at = 0; at < given.pcm.length; at += 8000) queue.push(decodeBase64(given.pcm.slice(at, at + 8000)));
    return Object.assign(queue, { stop: () => queue.end() });
  };
  const hook = await render(useLiveTranscript, { client: client(), source, language: "en" });
  const running = hook.current.start();
  await until(() => hook.current.state === "listening", "the session");
  await hook.current.stop();
  await running;
  await until(() => hook.current.state === "idle", "the end");
  ok(/lazy dog/i.test(hook.current.finals.join(" ")), hook.current.finals.join(" "));
  equal(hook.current.error, undefined);
  hook.root.unmount();
});
