import assert from "node:assert/strict";
import { test } from "node:test";
import { act, createElement } from "react";
import renderer from "react-test-renderer";
import { AudioQueue, Client } from "@svc/client";
import { useChat, useLiveTranscript } from "@svc/client/react";
import { client, play, skip, until } from "./gateway.mjs";

globalThis.IS_REACT_ACT_ENVIRONMENT = true;

/** Wait until a condition holds. React renders at the end of each `act`. */
function settle(condition, what) {
  return until(async () => {
    await act(() => new Promise((resolve) => setTimeout(resolve, 20)));
    return condition();
  }, what);
}

/** Render a hook. `hook.current` is what it returned last. */
async function render(use, options) {
  const hook = {};
  const Component = () => {
    hook.current = use(options);
    return null;
  };
  await act(async () => (hook.root = renderer.create(createElement(Component))));
  return hook;
}

test("useChat streams, keeps the conversation, and reports errors", { skip }, async () => {
  await play("stream", "whole", "400");
  const hook = await render(useChat, { client: client(), system: "Be brief." });
  await act(() => hook.current.send("Hi"));
  assert.deepEqual(hook.current.messages, [
    { role: "user", content: "Hi" },
    { role: "assistant", content: "Hello to all of you 🌍" },
  ]);
  assert.equal(hook.current.isStreaming, false);
  await play("error event");
  await act(() => hook.current.send("More"));
  assert.ok(hook.current.error);
  assert.equal(hook.current.messages.length, 4);
  await act(async () => hook.current.clear());
  assert.deepEqual([hook.current.messages, hook.current.error], [[], undefined]);
});

test("useChat stops a response", { skip }, async () => {
  await play("stalled");
  const hook = await render(useChat, { client: client() });
  let sending;
  await act(async () => { sending = hook.current.send("Hi"); });
  await settle(() => hook.current.messages.length === 2, "the first text");
  await act(async () => {
    hook.current.stop();
    await sending;
  });
  assert.deepEqual([hook.current.isStreaming, hook.current.error], [false, undefined]);
  await act(async () => hook.root.unmount());
});

test("useLiveTranscript shows partials and finals", async () => {
  let sockets = 0;
  class FakeSocket {
    bufferedAmount = 0;
    constructor() {
      sockets++;
      setTimeout(() => this.onopen());
    }
    send(message) {
      const say = (data) => setTimeout(() => this.onmessage({ data: JSON.stringify(data) }));
      if (typeof message !== "string") return say({ type: "partial", text: "hel", is_stable: false, chunk_index: 0 });
      const { type } = JSON.parse(message);
      if (type === "config") say({ type: "ready", session_id: "s", model: "m" });
      if (type === "flush") say({ type: "final", text: "hello", duration_ms: 1, chunks_processed: 1 });
      if (type === "close") {
        say({ type: "closed", reason: "client_close" });
        setTimeout(() => this.onclose());
      }
    }
    close() {}
  }
  const queue = new AudioQueue();
  const source = async () => Object.assign(queue, { stop: () => queue.end() });
  const hook = await render(useLiveTranscript, { client: new Client({ gatewayUrl: "http://127.0.0.1:9", WebSocket: FakeSocket }), source });
  let running;
  await act(async () => { running = hook.current.start(); });
  await settle(() => hook.current.state === "listening", "the session");
  queue.push(new Int16Array(160));
  await settle(() => hook.current.partial === "hel", "the partial");
  await act(async () => {
    await hook.current.stop();
    await running;
  });
  assert.deepEqual([hook.current.finals, hook.current.partial, hook.current.state, hook.current.error, sockets], [["hello"], "", "idle", undefined, 1]);
});
