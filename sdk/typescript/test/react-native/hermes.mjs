/**
 * Runs a bundle of Metro in the virtual machine of Hermes, and plays the native side of React Native for it.
 *
 * Hermes' command reads JavaScript from its input, one line at a time, and `print` writes to its output. A line of the
 * output that begins with `@` is a call of a native module: `[module, method, ...arguments]`. The host's calls are
 * lines `__host(…)` of the input, after which Hermes runs the microtasks, as it does in an app.
 */

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import http from "node:http";
import { createInterface } from "node:readline";
import { StringDecoder } from "node:string_decoder";
import WebSocket from "ws";

/** Return a literal of JavaScript in ASCII, on one line. */
function literal(value) {
  return JSON.stringify(value ?? null).replace(/[^\x20-\x7e]/g, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export class Hermes {
  #process;
  #calls = new Map();
  #nextCall = 1;
  #modules;
  #log = [];

  /** Start the machine with a bundle. `overrides` are native modules of the test. */
  constructor(command, bundle) {
    this.#process = spawn(command, ["-w"], { stdio: ["pipe", "pipe", "inherit"] });
    this.#process.on("exit", (code, signal) => this.#fail(new Error(`Hermes ended with ${code ?? signal}.\n${this.#log.join("\n")}`)));
    this.#process.stdin.on("error", () => undefined); // the exit reports it
    const blobs = new Map();
    const emit = (name, value) => this.#write(`__host(${literal(["emit", name, value])})`);
    this.#modules = {
      Test: { settled: (id, error, value) => this.#settle(id, error, value), log: (text) => console.log(text) },
      Timers: timers((id) => this.#write(`__host(${literal(["timer", id])})`)),
      Networking: networking(emit, blobs),
      WebSocketModule: webSockets(emit),
      Stream: streams((...event) => this.#write(`__host(${literal(["stream", ...event])})`)),
      Blobs: blobReader(blobs, (...parts) => this.#write(`__host(${literal(parts)})`)),
    };
    createInterface({ input: this.#process.stdout }).on("line", (line) => this.#read(line.replace(/^(>> |\.\. )+/, "")));
    this.#write(`(0,eval)(${literal(readFileSync(bundle, "utf8"))}), 0`); // the machine prints the result of each line
  }

  /** Call a function of the bundle, and wait for its promise. */
  call(name, ...values) {
    const id = this.#nextCall++;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject });
      this.#write(`__host(${literal(["call", id, name, ...values])})`);
    });
  }

  stop() {
    this.#process.removeAllListeners("exit");
    this.#process.kill("SIGKILL");
    for (const module of Object.values(this.#modules)) module.stop?.();
  }

  #write(line) {
    if (this.#process.exitCode === null && this.#process.signalCode === null) this.#process.stdin.write(`${line}\n`);
  }

  #read(line) {
    if (!line.startsWith("@")) {
      if (line && line !== "undefined") this.#log.push(line);
      if (/^(Uncaught|\d+:\d+: error)/.test(line)) this.#fail(new Error(this.#log.join("\n")));
      return;
    }
    const [module, method, ...values] = JSON.parse(line.slice(1));
    this.#modules[module][method](...values);
  }

  #settle(id, error, value) {
    const { resolve, reject } = this.#calls.get(id);
    this.#calls.delete(id);
    if (error === null) resolve(value);
    else reject(Object.assign(new Error(error.message), { stack: error.stack }));
  }

  #fail(error) {
    for (const { reject } of this.#calls.values()) reject(error);
    this.#calls.clear();
  }
}

function timers(fire) {
  const running = new Map();
  return {
    set(id, delay) {
      running.set(id, setTimeout(() => fire(id), delay));
    },
    clear(id) {
      clearTimeout(running.get(id));
      running.delete(id);
    },
    stop() {
      for (const timer of running.values()) clearTimeout(timer);
    },
  };
}

/** The module `Networking` of Android: events for the head, the parts of the body, and the end of a response. */
function networking(emit, blobs) {
  const requests = new Map();
  return {
    sendRequest(method, url, id, headers, data, responseType, incrementalUpdates) {
      const { body, type } = requestBody(data, blobs);
      const given = Object.fromEntries(headers);
      if (type && !given["content-type"]) given["content-type"] = type;
      if (body !== undefined) given["content-length"] = String(body.length);
      const finish = (error) => {
        if (requests.delete(id)) emit("didCompleteNetworkResponse", error ? [id, error, false] : [id, null]);
      };
      const request = http.request(url, { method, headers: given, agent: false }, (response) => {
        const fields = Object.fromEntries(Object.entries(response.headers).map(([name, value]) => [name, String(value)]));
        emit("didReceiveNetworkResponse", [id, response.statusCode, fields, url]);
        const parts = [];
        const decoder = new StringDecoder("utf8");
        response.on("data", (part) => {
          if (responseType !== "text" || !incrementalUpdates) parts.push(part);
          else emit("didReceiveNetworkIncrementalData", [id, decoder.write(part), 0, -1]);
        });
        response.on("error", (error) => finish(error.message));
        response.on("end", () => {
          const whole = Buffer.concat(parts);
          if (responseType === "blob") emit("didReceiveNetworkData", [id, storeBlob(blobs, whole)]);
          else if (responseType === "base64") emit("didReceiveNetworkData", [id, whole.toString("base64")]);
          else if (!incrementalUpdates) emit("didReceiveNetworkData", [id, whole.toString("utf8")]);
          finish();
        });
      });
      request.on("error", (error) => finish(error.message || error.code));
      requests.set(id, request);
      request.end(body);
    },
    abortRequest(id) {
      const request = requests.get(id);
      requests.delete(id);
      request?.destroy();
    },
    stop() {
      for (const request of requests.values()) request.destroy();
      requests.clear();
    },
  };
}

/** What a streaming `fetch` needs: the head of a response, its bytes while they arrive, and the end. */
function streams(emit) {
  const requests = new Map();
  return {
    open(id, { method, url, headers, body }) {
      const request = http.request(url, { method, headers, agent: false }, (response) => {
        emit(id, "head", response.statusCode, response.headers);
        response.on("data", (part) => emit(id, "data", part.toString("base64")));
        response.on("error", (error) => emit(id, "error", error.message));
        response.on("end", () => emit(id, "end"));
      });
      request.on("error", (error) => emit(id, "error", error.message || error.code));
      requests.set(id, request);
      request.end(body);
    },
    abort: (id) => requests.get(id)?.destroy(),
    stop() {
      for (const request of requests.values()) request.destroy();
    },
  };
}

let blobCount = 0;

function storeBlob(blobs, bytes) {
  const blobId = `host-${++blobCount}`;
  blobs.set(blobId, bytes);
  return { blobId, offset: 0, size: bytes.length };
}

/** Return the bytes of what `convertRequestBody` of React Native makes of a body. */
function requestBody(data, blobs) {
  if (data.string !== undefined) return { body: Buffer.from(data.string) };
  if (data.base64 !== undefined) return { body: Buffer.from(data.base64, "base64") };
  if (data.blob !== undefined) return { body: blobs.get(data.blob.blobId) };
  if (data.formData === undefined) return {};
  const boundary = "react-native-boundary";
  const parts = data.formData.flatMap((part) => [
    Buffer.from(`--${boundary}\r\n${part.headers.map(([name, value]) => `${name}: ${value}\r\n`).join("")}\r\n`),
    part.string === undefined ? readUri(part.uri) : Buffer.from(part.string),
    Buffer.from("\r\n"),
  ]);
  return { body: Buffer.concat([...parts, Buffer.from(`--${boundary}--\r\n`)]), type: `multipart/form-data; boundary=${boundary}` };
}

/** Read a file as the native side does: of the phone, or of a data URL. */
function readUri(uri) {
  return uri.startsWith("data:") ? Buffer.from(uri.split(",")[1], "base64") : readFileSync(new URL(uri));
}

/** The modules `BlobModule` and `FileReaderModule`. */
function blobReader(blobs, answer) {
  const read = ({ blobId, offset, size }) => blobs.get(blobId).subarray(offset, offset + size);
  return {
    createFromParts(parts, blobId) {
      blobs.set(blobId, Buffer.concat(parts.map((part) => (part.type === "string" ? Buffer.from(part.data) : read(part.data)))));
    },
    release: (blobId) => blobs.delete(blobId),
    readAsText: (call, blob) => answer("resolve", call, read(blob).toString("utf8")),
    readAsDataURL: (call, blob) => answer("resolve", call, `data:application/octet-stream;base64,${read(blob).toString("base64")}`),
  };
}

/** The module `WebSocketModule`. */
function webSockets(emit) {
  const sockets = new Map();
  return {
    connect(url, protocols, options, id) {
      const socket = new WebSocket(url, protocols ?? [], { headers: options.headers });
      sockets.set(id, socket);
      socket.on("open", () => emit("websocketOpen", { id, protocol: socket.protocol }));
      socket.on("message", (data, isBinary) =>
        emit("websocketMessage", isBinary ? { id, type: "binary", data: data.toString("base64") } : { id, type: "text", data: data.toString("utf8") }),
      );
      socket.on("error", (error) => {
        sockets.delete(id);
        emit("websocketFailed", { id, message: error.message });
      });
      socket.on("close", (code, reason) => {
        if (!sockets.delete(id)) return; // the failure was reported
        // OkHttp reports a connection without a close frame as a failure.
        if (code === 1006) emit("websocketFailed", { id, message: "unexpected end of stream" });
        else emit("websocketClosed", { id, code, reason: reason.toString("utf8") });
      });
    },
    send: (text, id) => sockets.get(id)?.send(text),
    sendBinary: (base64, id) => sockets.get(id)?.send(Buffer.from(base64, "base64")),
    close: (code, reason, id) => sockets.get(id)?.close(code, reason),
    stop() {
      for (const socket of sockets.values()) socket.terminate();
    },
  };
}
