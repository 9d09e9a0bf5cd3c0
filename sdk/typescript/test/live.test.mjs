import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { test } from "node:test";
import { AudioQueue, AuthenticationFailed, Client, GatewayFailed, InvalidRequest, RateLimited, Resampler, UsageError } from "@svc/client";
import WebSocket, { WebSocketServer } from "ws";
import { client, gatewayUrl, key, skip } from "./gateway.mjs";

const CLIP = process.env.TEST_CLIP;

/** Start a gateway whose speech sessions are played by `onSession(socket, number)`. */
async function withLive(onSession, check, options = {}) {
  const keys = [];
  const server = createServer((request, response) => {
    const isValid = request.headers.authorization === "Bearer good";
    response.writeHead(isValid ? 200 : 401, { "content-type": "application/json" });
    response.end(JSON.stringify(isValid ? { data: [] } : { error: { message: "no", code: "authentication_error" } }));
  });
  const sockets = new WebSocketServer({ noServer: true, handleProtocols: () => "svc.v1" });
  let number = 0;
  server.on("upgrade", (request, socket, head) => {
    const offered = request.headers["sec-websocket-protocol"].split(",").map((each) => each.trim());
    keys.push(offered[1]);
    if (offered[0] !== "svc.v1" || offered[1] !== "svc.api-key.good") {
      socket.end("HTTP/1.1 401 Unauthorized\r\nconnection: close\r\n\r\n");
      return;
    }
    sockets.handleUpgrade(request, socket, head, (one) => onSession(one, ++number));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await check(new Client({ gatewayUrl: `http://127.0.0.1:${server.address().port}`, apiKey: "good", WebSocket, retries: 0, ...options }), keys);
  } finally {
    for (const one of sockets.clients) one.terminate();
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
}

/** Play a server that counts the bytes of each utterance. */
function counting(socket, { onAudio = () => {}, session = "s" } = {}) {
  const say = (message) => socket.send(JSON.stringify(message));
  let bytes = 0;
  socket.on("message", (data, isBinary) => {
    if (isBinary) {
      bytes += data.length;
      say({ type: "partial", text: `${bytes}`, is_stable: false, chunk_index: 0 });
      onAudio(bytes);
      return;
    }
    const message = JSON.parse(data);
    if (message.type === "config") say({ type: "ready", session_id: session, model: message.model ?? "default", sample_rate: 16000 });
    if (message.type === "reset") bytes = 0;
    if (message.type === "flush") {
      say({ type: "final", text: `${bytes} bytes`, duration_ms: bytes / 32, chunks_processed: 1 });
      bytes = 0;
    }
    if (message.type === "close") {
      say({ type: "closed", reason: "client_close" });
      socket.close(1000);
    }
  });
}

test("live yields typed events", async () => {
  await withLive(
    (socket) => counting(socket),
    async (one) => {
      const session = await one.live({ model: "m", language: "en" });
      assert.deepEqual([session.sessionId, session.model], ["s", "m"]);
      await session.feed(new Int16Array(1600));
      await session.feed(new Uint8Array(3));
      await session.feed(new Uint8Array(3));
      assert.equal((await session.finish()).text, "3206 bytes");
      await assert.rejects(session.feed(new Float32Array(1)), InvalidRequest);
      await session.feed(new ArrayBuffer(4));
      session.reset();
      session.flush();
      assert.equal((await session.finish()).text, "0 bytes");
      await session.close();
      assert.equal(session.closeReason, "client_close");
      const types = [];
      for await (const event of session) types.push(event.type);
      assert.equal(types[0], "ready");
      assert.equal(types.at(-1), "closed");
      assert.equal(types.filter((type) => type === "final").length, 3);
      await assert.rejects(session.feed(new Int16Array(1)), GatewayFailed);
    },
  );
});

test("live connects again, and sends the audio of the unfinished utterances again", async () => {
  await withLive(
    (socket, number) => counting(socket, { session: `s${number}`, onAudio: (bytes) => number === 1 && bytes >= 6400 && socket.terminate() }),
    async (one) => {
      const session = await one.live();
      await session.feed(new Int16Array(1600));
      assert.equal((await session.finish()).text, "3200 bytes");
      await session.feed(new Int16Array(1600));
      await session.feed(new Int16Array(1600));
      const types = [];
      for (let event = await session.next(); event; event = await session.next()) {
        types.push(event.type);
        if (event.type === "reconnected") {
          assert.equal(event.lostMs, 0);
          break;
        }
      }
      assert.ok(types.includes("reconnecting"));
      assert.equal(session.sessionId, "s2");
      assert.equal((await session.finish()).text, "6400 bytes");
      await session.close();
    },
  );
});

test("live: a final that a lost connection owes comes after the next one", async () => {
  await withLive(
    (socket, number) => {
      if (number > 1) return counting(socket);
      socket.on("message", (data, isBinary) => {
        const type = isBinary ? "audio" : JSON.parse(data).type;
        if (type === "config") socket.send('{"type":"ready","session_id":"s1","model":"m"}');
        if (type === "flush") socket.terminate();
      });
    },
    async (one) => {
      const session = await one.live();
      await session.feed(new Int16Array(800));
      assert.equal((await session.finish()).text, "1600 bytes");
      await session.close();
    },
  );
});

test("live fails after the last attempt to connect again", async () => {
  await withLive(
    (socket, number) => (number === 1 ? counting(socket, { onAudio: () => socket.terminate() }) : socket.close(1011)),
    async (one) => {
      const session = await one.live({ reconnects: 1 });
      await session.feed(new Int16Array(1));
      await assert.rejects(async () => {
        for await (const event of session) void event;
      }, GatewayFailed);
      await assert.rejects(session.finish(), GatewayFailed);
    },
  );
});

test("live: a wrong key is AuthenticationFailed, and a key function is asked again", async () => {
  await withLive(
    (socket) => counting(socket),
    async (one, keys) => {
      const options = { gatewayUrl: one.gatewayUrl, WebSocket, retries: 0 };
      await assert.rejects(new Client({ ...options, apiKey: "bad" }).live(), AuthenticationFailed);
      let calls = 0;
      const session = await new Client({ ...options, apiKey: () => (calls++ ? "good" : "bad") }).live();
      await session.close();
      assert.equal(calls, 2);
      assert.deepEqual(keys, ["svc.api-key.bad", "svc.api-key.bad", "svc.api-key.good"]);
      await assert.rejects(new Client({ ...options, apiKey: "a,b" }).live(), InvalidRequest);
    },
  );
});

test("live: errors before and after `ready`, and the end by the server", async () => {
  await withLive(
    (socket, number) => {
      if (number === 1) {
        socket.send('{"type":"error","code":"rate_limit_exceeded","message":"full"}');
        socket.close(1013);
        return;
      }
      counting(socket, {
        onAudio: () => {
          socket.send('{"type":"error","code":"asr_error","message":"oops"}');
          socket.send('{"type":"news"}');
          socket.send('{"type":"closed","reason":"idle_timeout"}');
          socket.close(1000);
        },
      });
    },
    async (one) => {
      await assert.rejects(one.live(), RateLimited);
      const session = await one.live();
      await session.feed(new Int16Array(1));
      const events = [];
      for await (const event of session) events.push(event);
      assert.deepEqual(events.map((event) => event.type), ["ready", "partial", "error", "closed"]);
      assert.equal(events[2].error.code, "asr_error");
      assert.equal(session.closeReason, "idle_timeout");
    },
  );
});

test("live: feed waits for a connection that is slow", async () => {
  await withLive(
    (socket) => {
      counting(socket);
      socket.on("message", (_, isBinary) => isBinary && socket.pause());
    },
    async (one) => {
      const session = await one.live();
      let fed = 0;
      const feeding = (async () => {
        for (; fed < 1000; fed++) await session.feed(new Int16Array(16_000));
      })();
      feeding.catch(() => {});
      let before = -1;
      while (before !== fed) {
        before = fed;
        await new Promise((resolve) => setTimeout(resolve, 500));
      }
      assert.ok(fed < 900, `${fed} seconds of audio were queued`);
      const aborted = session.close();
      await aborted;
    },
  );
});

test("live: timeoutMs limits the wait for a final, and for a gateway that does not read", async () => {
  const isTimeout = (error) => error instanceof GatewayFailed && error.message.includes("timed out");
  const silent = (socket) => {
    socket.once("message", () => {
      socket.send(JSON.stringify({ type: "ready", session_id: "s", model: "m" }));
      socket.pause();
    });
  };
  await withLive(
    silent,
    async (one) => {
      const session = await one.live();
      await assert.rejects(session.finish(), isTimeout);
      await assert.rejects(session.next().then(() => session.next()), isTimeout);
      const other = await one.live();
      const feedAll = async () => {
        for (let chunk = 0; chunk < 1000; chunk++) await other.feed(new Uint8Array(1 << 20));
      };
      await assert.rejects(feedAll(), isTimeout);
    },
    { timeoutMs: 300 },
  );
});

test("live: an abort ends the session", async () => {
  await withLive(
    (socket) => counting(socket),
    async (one) => {
      const controller = new AbortController();
      const session = await one.live({ signal: controller.signal });
      controller.abort();
      await assert.rejects(async () => {
        for await (const event of session) void event;
      }, { name: "AbortError" });
      await assert.rejects(one.live({ signal: controller.signal }), { name: "AbortError" });
    },
  );
});

test("live without a WebSocket says what to do", async () => {
  const { WebSocket: native } = globalThis;
  delete globalThis.WebSocket;
  try {
    await assert.rejects(new Client({ gatewayUrl: "http://127.0.0.1:9" }).live(), UsageError);
  } finally {
    if (native) globalThis.WebSocket = native;
  }
});

test("a real gateway transcribes live audio and a file", { skip: skip || (CLIP ? false : "no clip") }, async () => {
  const wav = readFileSync(CLIP);
  const one = new Client({ gatewayUrl, apiKey: key, WebSocket });
  const session = await one.live({ language: "en" });
  const queue = new AudioQueue();
  // The clip has 32-bit floats at 16 kHz.
  const samples = new Float32Array(Uint8Array.from(wav.subarray(wav.indexOf("data") + 8)).buffer);
  const resampler = new Resampler(16_000);
  for (let at = 0; at < samples.length; at += 1600) queue.push(resampler.feed(samples.subarray(at, at + 1600)));
  queue.push(resampler.flush());
  queue.end();
  await session.pipe(queue);
  assert.match((await session.finish()).text, /lazy dog/i);
  await session.close();
  assert.match((await client().transcribe(wav)).text, /lazy dog/i);
});

/** Return the strength of a frequency in samples at 16 kHz. */
function strength(samples, frequency) {
  let [re, im] = [0, 0];
  samples.forEach((value, index) => {
    re += value * Math.cos((2 * Math.PI * frequency * index) / 16_000);
    im += value * Math.sin((2 * Math.PI * frequency * index) / 16_000);
  });
  return (2 * Math.hypot(re, im)) / samples.length / 32767;
}

for (const rate of [8000, 16_000, 22_050, 44_100, 48_000, 96_000]) {
  test(`the resampler keeps speech and removes what 16 kHz cannot hold: ${rate} Hz`, () => {
    const make = (frequency) => {
      const resampler = new Resampler(rate);
      const tone = Float32Array.from({ length: rate }, (_, index) => 0.5 * Math.sin((2 * Math.PI * frequency * index) / rate));
      const parts = [];
      for (let at = 0; at < rate; at += 2048) parts.push(...resampler.feed(tone.subarray(at, at + 2048)));
      return [...parts, ...resampler.flush()];
    };
    const kept = make(1000);
    assert.ok(Math.abs(kept.length - 16_000) < 20, `${kept.length} samples`);
    assert.ok(Math.abs(strength(kept.slice(200, -200), 1000) - 0.5) < 0.01);
    if (rate > 22_050) assert.ok(strength(make(10_000).slice(200, -200), 6000) < 0.001);
  });
}
