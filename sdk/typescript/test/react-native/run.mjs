/**
 * Runs the tests of the bundle in Hermes: `node --test run.mjs`. The variable BUNDLE is the file of Metro.
 *
 * Writes the results of test/capabilities.mjs to the file in the variable RESULTS, one line of JSON for each.
 */

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { after, test } from "node:test";
import { pathToFileURL } from "node:url";
import { WebSocketServer } from "ws";
import { Hermes } from "./hermes.mjs";

const { BUNDLE, RESULTS, TEST_GATEWAY, TEST_KEY, TEST_FAULTS, TEST_REGISTRY, TEST_PUBLIC_KEY, TEST_CLIP } = process.env;

const chunk = (text) => `data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", choices: [{ index: 0, delta: { content: text }, finish_reason: null }] })}\n\n`;
const whole = (text) => JSON.stringify({ choices: [{ index: 0, message: { role: "assistant", content: text }, finish_reason: "stop" }] });

/** A server whose responses break off, and one that responds only to the third request. */
let retries = 0;
const broken = createServer((request, response) => {
  request.resume();
  request.on("end", () => {
    const kind = request.url.split("/")[1];
    if (kind === "clip") return response.end(readFileSync(TEST_CLIP));
    if (kind === "retry" && ++retries === 1) return request.socket.destroy();
    if (kind === "retry" && retries === 3) return response.writeHead(200, { "content-type": "application/json" }).end(whole("third"));
    if (kind === "retry" || kind === "never") {
      response.writeHead(429, { "content-type": "application/json", "retry-after-ms": "1", ...(kind === "never" && { "x-should-retry": "false" }) });
      return response.end(JSON.stringify({ error: { message: "m", type: "t", code: "rate_limit_exceeded" } }));
    }
    const length = kind === "short" ? { "content-length": "10000" } : {};
    response.writeHead(200, { "content-type": "text/event-stream", ...length });
    // An event is complete after its blank line. "half" ends within the next event.
    response.write(chunk("Hel") + (kind === "half" ? chunk("lo").slice(0, 30) : ""), () => {
      if (kind === "half") response.end();
      else setTimeout(() => request.socket.destroy(), 50);
    });
  });
});

/** A gateway for live speech that loses the first session in the middle of its second utterance. */
let sessions = 0;
const speech = createServer((request, response) => {
  const isValid = request.headers.authorization === "Bearer good";
  response.writeHead(isValid ? 200 : 401, { "content-type": "application/json" });
  response.end(JSON.stringify(isValid ? { data: [] } : { error: { message: "no", code: "authentication_error" } }));
});
const sockets = new WebSocketServer({ noServer: true, handleProtocols: () => "svc.v1" });
speech.on("upgrade", (request, socket, head) => {
  if (!request.headers["sec-websocket-protocol"].includes("svc.api-key.good")) return socket.end("HTTP/1.1 401 Unauthorized\r\nconnection: close\r\n\r\n");
  sockets.handleUpgrade(request, socket, head, (one) => count(one, ++sessions === 1));
});

/** Count the bytes of each utterance. */
function count(socket, isLost) {
  const say = (message) => socket.send(JSON.stringify(message));
  let bytes = 0;
  let finals = 0;
  socket.on("message", (data, isBinary) => {
    if (isBinary) {
      bytes += data.length;
      say({ type: "partial", text: `${bytes}`, is_stable: false, chunk_index: 0 });
      if (isLost && finals === 1 && bytes >= 6400) socket.terminate();
      return;
    }
    const { type } = JSON.parse(data);
    if (type === "config") say({ type: "ready", session_id: "s", model: "m", sample_rate: 16000 });
    if (type === "flush") {
      finals++;
      say({ type: "final", text: `${bytes} bytes`, duration_ms: bytes / 32, chunks_processed: 1 });
      bytes = 0;
    }
    if (type === "close") {
      say({ type: "closed", reason: "client_close" });
      socket.close(1000);
    }
  });
}

/** Return the samples of a WAV file with 32-bit floats as 16-bit integers, as a recorder gives them. */
function readPcm(path) {
  const wav = readFileSync(path);
  const floats = new Float32Array(Uint8Array.from(wav.subarray(wav.indexOf("data") + 8)).buffer);
  return Buffer.from(Int16Array.from(floats, (value) => Math.max(-1, Math.min(1, value)) * 32767).buffer);
}

const listen = (server) => new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(`http://127.0.0.1:${server.address().port}`)));
const [brokenUrl, speechUrl] = [await listen(broken), await listen(speech)];
const machine = new Hermes("node_modules/hermes-engine-cli/linux64-bin/hermes", BUNDLE);

after(() => {
  machine.stop();
  for (const one of sockets.clients) one.terminate();
  for (const server of [broken, speech]) {
    server.closeAllConnections();
    server.close();
  }
});

const list = await machine.call("list", {
  gatewayUrl: TEST_GATEWAY,
  key: TEST_KEY,
  faults: TEST_FAULTS,
  registry: TEST_REGISTRY,
  publicKey: TEST_PUBLIC_KEY,
  broken: brokenUrl,
  speech: speechUrl,
  clip: pathToFileURL(TEST_CLIP).href,
  clipUrl: `${brokenUrl}/clip`,
  pcm: readPcm(TEST_CLIP).toString("base64"),
});
for (const [index, name] of list.entries()) test(name, { timeout: 180_000 }, () => machine.call("run", index));

test("the capabilities of the documentation", { timeout: 600_000 }, async () => {
  const lines = await machine.call("capabilities");
  writeFileSync(RESULTS, lines.map((line) => `${JSON.stringify(line)}\n`).join(""));
  for (const { capability, result } of lines) assert.ok(result === "ok" || result === "absent", `${capability}: ${result}`);
});
