import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { BundleNotFound, Client, InsufficientStorage, InvalidBundle, InvalidRequest, PipelineFailed, RegistryUnreachable, UsageError, nodeStorage, registerRunner } from "@svc/client";
import { parseYaml, Sha256 } from "../build/internals.js";
import { client, play, received, skip } from "./gateway.mjs";

const { TEST_REGISTRY: registryUrl, TEST_REGISTRY_ROOT: root, TEST_PUBLIC_KEY: publicKey } = process.env;
const fresh = () => nodeStorage(mkdtempSync(join(tmpdir(), "svc-sdk-")));

/** A fetch that breaks off the first bundle after some bytes. */
function cutting(bytes) {
  const ranges = [];
  let isCut = false;
  const send = async (url, init) => {
    const response = await fetch(url, init);
    if (!String(url).endsWith(".xyb")) return response;
    ranges.push(init.headers.range);
    if (isCut) return response;
    isCut = true;
    let sent = 0;
    const body = response.body.pipeThrough(
      new TransformStream({
        transform(part, controller) {
          if (sent < bytes) controller.enqueue(part);
          sent += part.length;
          if (sent >= bytes) controller.error(new Error("cut"));
        },
      }),
    );
    return new Response(body, { status: response.status, headers: response.headers });
  };
  return { send, ranges };
}

test("bundle downloads, verifies and reads a bundle, and then needs no network", { skip }, async () => {
  const storage = fresh();
  const one = new Client({ registryUrl });
  const progress = [];
  const bundle = await one.bundle("toy@1", { storage, trustedKeys: [publicKey], onProgress: (each) => progress.push(each) });
  assert.equal(bundle.reference, "toy@1.1.0");
  assert.equal(bundle.metadata.execution_template.type, "Toy");
  assert.deepEqual(bundle.files.sort(), ["model_metadata.json", "weights.bin", "words.txt"]);
  assert.equal((await bundle.read("weights.bin")).length, 3_000_000);
  assert.equal(new TextDecoder().decode(await bundle.read("words.txt")), "word\n".repeat(1000));
  assert.equal(progress.at(-1).receivedBytes, progress.at(-1).totalBytes);
  assert.ok(readFileSync(bundle.path).length > 3_000_000);
  await assert.rejects(bundle.read("other"), BundleNotFound);
  const offline = new Client({ registryUrl: "http://127.0.0.1:9", retries: 0 });
  assert.equal((await offline.bundle("toy@1.1.0", { storage })).reference, "toy@1.1.0");
  assert.equal((await offline.bundle("toy", { storage })).reference, "toy@1.1.0");
  await assert.rejects(offline.bundle("other", { storage }), RegistryUnreachable);
  const failing = new Client({ registryUrl, retries: 0, fetch: async () => new Response("<html>Bad Gateway</html>", { status: 502 }) });
  assert.equal((await failing.bundle("toy", { storage })).reference, "toy@1.1.0");
  await assert.rejects(failing.bundle("other", { storage }), RegistryUnreachable);
});

test("bundle reads the folder of this machine's registry", { skip }, async () => {
  const bundle = await new Client().bundle("toy@1.0.0", { storage: nodeStorage(root) });
  assert.equal(bundle.metadata.version, "1.0.0");
});

test("bundle continues a download that was cut, and one of an earlier call", { skip }, async () => {
  const storage = fresh();
  const { send, ranges } = cutting(1_000_000);
  await new Client({ registryUrl, fetch: send }).bundle("toy@1.0.0", { storage });
  assert.equal(ranges.length, 2);
  assert.match(ranges[1], /^bytes=\d+-$/);
  const controller = new AbortController();
  const options = { storage, signal: controller.signal, onProgress: ({ receivedBytes }) => receivedBytes > 500_000 && controller.abort() };
  await assert.rejects(new Client({ registryUrl }).bundle("toy@1.1.0", options), { name: "AbortError" });
  const again = cutting(Infinity);
  await new Client({ registryUrl, fetch: again.send }).bundle("toy@1.1.0", { storage });
  assert.match(again.ranges[0], /^bytes=[1-9]\d*-$/);
});

test("a full disk is an InsufficientStorage, and the bytes so far are kept", { skip }, async () => {
  const storage = fresh();
  let room = 1_000_000;
  const small = {
    ...storage,
    freeBytes: undefined,
    append: async (name, bytes) => {
      await storage.append(name, bytes.subarray(0, room));
      room -= bytes.length;
      if (room < 0) throw Object.assign(new Error("ENOSPC: no space left on device, write"), { code: "ENOSPC" });
    },
  };
  const one = new Client({ registryUrl });
  await assert.rejects(one.bundle("toy@1.0.0", { storage: small }), InsufficientStorage);
  const quota = { ...storage, append: () => Promise.reject(new DOMException("full", "QuotaExceededError")) };
  await assert.rejects(one.bundle("toy@1.0.0", { storage: quota }), InsufficientStorage);
  let requests = 0;
  const counted = new Client({ registryUrl, fetch: (url, init) => ((requests += String(url).endsWith(".xyb")), fetch(url, init)) });
  await assert.rejects(counted.bundle("toy@1.0.0", { storage: { ...storage, freeBytes: async () => 1000 } }), /has 1000 bytes free/);
  assert.equal(requests, 0);
  const { send, ranges } = cutting(10_000_000);
  await new Client({ registryUrl, fetch: send }).bundle("toy@1.0.0", { storage });
  assert.deepEqual(ranges, ["bytes=1000000-"]);
});

test("a storage with openWriter keeps the file of a download open", { skip }, async () => {
  const inner = fresh();
  const calls = [];
  const storage = {
    ...inner,
    append: () => assert.fail("the file was opened again"),
    openWriter: async (name) => {
      calls.push("open");
      return { append: (bytes) => inner.append(name, bytes), close: async () => void calls.push("close") };
    },
    rename: (from, to) => {
      calls.push("rename");
      return inner.rename(from, to);
    },
  };
  const { send } = cutting(1_000_000);
  const bundle = await new Client({ registryUrl, fetch: send }).bundle("toy@1.0.0", { storage });
  assert.equal((await bundle.read("weights.bin")).length, 3_000_000);
  assert.deepEqual(calls, ["open", "close", "rename"]);
});

test("a download whose file another page writes has a file of its own", { skip }, async () => {
  const inner = fresh();
  const names = [];
  const openWriter = async (name) => {
    if (name.endsWith(".partial")) return undefined;
    names.push(name);
    return { append: (bytes) => inner.append(name, bytes), close: async () => {} };
  };
  await new Client({ registryUrl }).bundle("toy@1.0.0", { storage: { ...inner, openWriter } });
  assert.deepEqual(names.map((name) => name.replace(/-\w+$/, "-x")), ["toy/1.0.0/any/toy.xyb.partial-x"]);
  assert.deepEqual(await inner.list("toy"), ["toy/1.0.0/any/toy.xyb"]);
});

test("two downloads of one bundle at the same time do not mix", { skip }, async () => {
  const storage = fresh();
  const one = new Client({ registryUrl });
  const bundles = await Promise.all([1, 2, 3].map(() => one.bundle("toy@1.0.0", { storage })));
  for (const bundle of bundles) assert.equal((await bundle.read("weights.bin")).length, 3_000_000);
  assert.deepEqual(await storage.list("toy"), ["toy/1.0.0/any/toy.xyb"]);
});

test("bundle refuses what is not signed, damaged, missing or badly named", { skip }, async () => {
  const storage = fresh();
  const one = new Client({ registryUrl });
  const stranger = Buffer.alloc(32, 7).toString("base64");
  await assert.rejects(one.bundle("toy@1.0.0", { storage, trustedKeys: [stranger] }), InvalidBundle);
  await assert.rejects(new Client({ registryUrl, bundles: { storage, trustedKeys: [stranger] } }).bundle("toy@1.0.0", { trustedKeys: undefined }), InvalidBundle);
  await assert.rejects(one.bundle("toy@1.0.0", { storage, trustedKeys: ["short"] }), UsageError);
  await assert.rejects(one.bundle("toy@1.0.0", { storage, trustedKeys: publicKey }), UsageError);
  process.env.SVC_TRUSTED_KEYS = " , ";
  try {
    await assert.rejects(one.bundle("toy@1.0.0", { storage }), UsageError);
  } finally {
    delete process.env.SVC_TRUSTED_KEYS;
  }
  await assert.rejects(one.bundle("toy@9", { storage }), BundleNotFound);
  await assert.rejects(one.bundle("nothing", { storage }), BundleNotFound);
  await assert.rejects(one.bundle("../toy", { storage }), InvalidRequest);
  const damaging = async (url, init) => {
    const response = await fetch(url, init);
    if (!String(url).endsWith(".xyb")) return response;
    const bytes = new Uint8Array(await response.arrayBuffer());
    bytes[1_000_000] ^= 1;
    return new Response(bytes, { status: 200 });
  };
  await assert.rejects(new Client({ registryUrl, fetch: damaging }).bundle("toy@1.0.0", { storage }), InvalidBundle);
  assert.deepEqual((await storage.list("toy")).filter((name) => name.endsWith(".xyb") || name.endsWith(".partial")), []);
});

test("a pipeline runs stages through the gateway and through a runner", { skip }, async () => {
  registerRunner("Toy", async (bundle, input) => `${bundle.metadata.model_id} read: ${input} (${(await bundle.read("words.txt")).length})`);
  await play("whole");
  const folder = mkdtempSync(join(tmpdir(), "svc-sdk-"));
  process.env.SVC_REGISTRY_ROOT = folder;
  try {
    const pipeline = client({ registryUrl }).pipeline(`
name: demo   # a comment
stages:
  - id: ask
    target: integration
    provider: openai
    model: gpt-4o-mini
    options: {system_prompt: "Be brief.", max_tokens: 9}
  - toy@1.0.0
`);
    const result = await pipeline.run("Hi");
    assert.deepEqual(result.output, { kind: "text", text: "toy read: Hello (5000)" });
    assert.deepEqual(result.stages.map(({ id, route, model }) => [id, route, model]), [["ask", "gateway", "gpt-4o-mini"], ["toy", "device", "toy@1.0.0"]]);
    const { messages, max_tokens } = (await received())[0].json();
    assert.deepEqual([messages, max_tokens], [[{ role: "system", content: "Be brief." }, { role: "user", content: "Hi" }], 9]);
    assert.ok(readdirSync(folder).includes("toy"));
    await play("400");
    await assert.rejects(pipeline.run("Hi"), (error) => error instanceof PipelineFailed && error.message.includes('"ask"'));
  } finally {
    delete process.env.SVC_REGISTRY_ROOT;
  }
});

test("a pipeline that is wrong is refused before it runs", () => {
  const one = new Client({ gatewayUrl: "http://127.0.0.1:9" });
  for (const text of ["", "name: x", "name: x\nstages: []", "name: x\nstages: [{target: integration}]", "name: x\nother: 1\nstages: [m]", "name: x\nstages:\n- a\n b", "- a", "name: [x\nstages: [m]", "name: &a x\nstages: [m]", "name: x\nname: y\nstages: [m]", `name: x\nstages: ${"[".repeat(5000)}`, `name: x\nstages:\n  ${"- ".repeat(5000)}m`, "name: x\ninput: {kind: Video}\nstages: [m]", "name: x\ninput: {}\nstages: [m]", "name: x\ninput: AudioRaw\nstages: [{target: integration, model: m}]"]) {
    assert.throws(() => one.pipeline(text), UsageError, text);
  }
});

test("YAML is parsed as in Python", () => {
  const cases = [
    ["a: 1\nb: 1.5\nc: true\nd: null\ne: ~\nf: text with spaces\ng:", { a: 1, b: 1.5, c: true, d: null, e: null, f: "text with spaces", g: null }],
    ["a: \"x # y\"\nb: 'it''s'\nc: x # comment\n# line\nd: http://host:80/#x", { a: "x # y", b: "it's", c: "x", d: "http://host:80/#x" }],
    ["a:\n  - 1\n  - b: 2\n    c: 3\n  -\n    d: 4\n", { a: [1, { b: 2, c: 3 }, { d: 4 }] }],
    ["a:\n- x\n- y\nb: {c: [1, two], \"d\": {e: f}}", { a: ["x", "y"], b: { c: [1, "two"], d: { e: "f" } } }],
    ["a: |\n  one\n  two\nb: >-\n  three\n  four\nc: |-\n  five", { a: "one\ntwo\n", b: "three four", c: "five" }],
    ["---\na: {}\nb: []", { a: {}, b: [] }],
    ["\ufeffa: 1\nb: 2", { a: 1, b: 2 }],
  ];
  for (const [text, value] of cases) assert.deepEqual(parseYaml(text), value);
  const names = ["ask", "transcribe", "voice-assistant"];
  for (const name of names) {
    const text = readFileSync(new URL(`../../../examples/${name}.yaml`, import.meta.url), "utf8");
    const pipeline = new Client({ gatewayUrl: "http://127.0.0.1:9" }).pipeline(text);
    assert.equal(pipeline.name, name);
    assert.equal(pipeline.stages.length, name === "voice-assistant" ? 3 : 1);
  }
});

test("SHA-256 of parts is that of Node", () => {
  const data = Uint8Array.from({ length: 1000 }, (_, index) => (index * 7) % 251);
  for (let size = 0; size <= 300; size++) {
    const hash = new Sha256();
    hash.update(data.subarray(0, size >> 1));
    hash.update(data.subarray(size >> 1, size));
    assert.equal(hash.hex(), createHash("sha256").update(data.subarray(0, size)).digest("hex"));
  }
});
