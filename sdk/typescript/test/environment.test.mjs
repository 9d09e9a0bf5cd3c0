import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

const KEY = `svc_sk_${"a".repeat(43)}`;

/** Return the URL of a client, and the key that it sends, in a process with these variables and files of SVC_HOME. */
function resolve(variables, files = {}) {
  const home = mkdtempSync(join(tmpdir(), "svc-sdk-"));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(home, name), text);
  const code = `
    import { Client } from "@svc/client";
    let sent;
    const client = new Client({ retries: 0, fetch: async (_, init) => ((sent = init.headers.authorization ?? null), new Response('{"data":[]}')) });
    await client.models();
    console.log(JSON.stringify([client.gatewayUrl, sent]));`;
  const env = { PATH: process.env.PATH, HOME: home, SVC_HOME: home, ...variables };
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "-e", code], { env, cwd: import.meta.dirname, encoding: "utf8" });
  assert.ok(stdout, stderr);
  return JSON.parse(stdout);
}

test("the environment and the gateway of this machine mean what they mean in Python", () => {
  const running = { "gateway.json": JSON.stringify({ url: "http://127.0.0.1:3999/v1", pid: process.pid }), api_key: `${KEY}\n` };
  const ended = { ...running, "gateway.json": JSON.stringify({ url: "http://127.0.0.1:3999/v1", pid: 2 ** 22 + 1 }) };
  assert.deepEqual(resolve({}), ["https://api.svc.example/v1", null]);
  assert.deepEqual(resolve({}, running), ["http://127.0.0.1:3999/v1", `Bearer ${KEY}`]);
  assert.deepEqual(resolve({}, ended), ["https://api.svc.example/v1", null]);
  assert.deepEqual(resolve({}, { ...running, "gateway.json": "{" }), ["https://api.svc.example/v1", null]);
  // The key of this machine goes only to its gateway.
  assert.deepEqual(resolve({ SVC_GATEWAY_URL: "http://other/v1" }, running), ["http://other/v1", null]);
  assert.deepEqual(resolve({ SVC_PLATFORM_URL: "http://other", SVC_API_KEY: "k" }, running), ["http://other/v1", "Bearer k"]);
});

test("without a permission to read the system, as in Deno, a client uses its options", () => {
  const code = `
    import { Client } from "@svc/client";
    const deny = (_, name) => { if (String(name).startsWith("SVC_")) throw new Error("NotCapable"); };
    process.getBuiltinModule("node:os").homedir = () => deny({}, "SVC_HOME");
    process.env = new Proxy({}, { get: deny });
    console.log(new Client({ gatewayUrl: "http://127.0.0.1:9" }).gatewayUrl, new Client().gatewayUrl);`;
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "-e", code], { cwd: import.meta.dirname, encoding: "utf8" });
  assert.equal(stdout.trim(), "http://127.0.0.1:9/v1 https://api.svc.example/v1", stderr);
});

test("SVC_TRUSTED_KEYS without a key is an error, and not a missing check of signatures", () => {
  const code = `
    import { Client } from "@svc/client";
    const entry = { model_id: "toy", version: "1", target: "any", size_bytes: 1, path: "toy/1/any/toy.xyb" };
    const fetch = async () => Response.json({ "toy/1/any": entry });
    await new Client({ fetch, registryUrl: "http://127.0.0.1:9" }).bundle("toy@1").catch((error) => console.log(error.name, error.message));`;
  const env = { PATH: process.env.PATH, SVC_HOME: mkdtempSync(join(tmpdir(), "svc-sdk-")), SVC_TRUSTED_KEYS: " , " };
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "-e", code], { env, cwd: import.meta.dirname, encoding: "utf8" });
  assert.match(stdout, /^UsageError .*SVC_TRUSTED_KEYS/, stderr);
});
