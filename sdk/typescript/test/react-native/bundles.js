/** Bundles and pipelines, with the storage that an app implements and a signature check in JavaScript. */

import { BundleNotFound, Client, InvalidBundle, PipelineFailed, UsageError, registerRunner } from "@svc/client";
import { equal, ok, rejects, test } from "./assert.js";
import { client, given, play } from "./gateway.js";
import { memoryStorage, verifyEd25519 } from "./storage.js";

test("a bundle is downloaded, verified and read, and then needs no network", async () => {
  const storage = memoryStorage();
  const options = { storage, trustedKeys: [given.publicKey], verifyEd25519 };
  const bundle = await new Client({ registryUrl: given.registry }).bundle("toy@1", options);
  equal([bundle.reference, bundle.metadata.execution_template.type], ["toy@1.1.0", "Toy"]);
  equal(String.fromCharCode(...(await bundle.read("words.txt")).slice(0, 5)), "word\n");
  await rejects(bundle.read("other"), BundleNotFound);
  equal((await new Client({ registryUrl: "http://127.0.0.1:9", retries: 0 }).bundle("toy@1.1.0", options)).reference, "toy@1.1.0");
});

test("a bundle without a valid signature is rejected", async () => {
  const one = new Client({ registryUrl: given.registry });
  const storage = memoryStorage();
  await rejects(one.bundle("toy@1", { storage, trustedKeys: [given.publicKey], verifyEd25519: () => false }), InvalidBundle);
  const error = await rejects(one.bundle("toy@1", { storage, trustedKeys: [given.publicKey] }), UsageError);
  ok(error.message.includes("verifyEd25519"), error.message);
  await rejects(one.bundle("toy@1"), UsageError);
});

const PIPELINE = `
name: demo
stages:
  - id: ask
    target: integration
    provider: openai
    model: gpt-4o-mini
  - toy@1.0.0
`;

test("a pipeline runs a model of the gateway, and a device model with the app's runner", async () => {
  registerRunner("Toy", async (bundle, input) => `${bundle.metadata.model_id} read: ${input} (${(await bundle.read("words.txt")).length})`);
  await play("whole");
  const one = client({ registryUrl: given.registry, bundles: { storage: memoryStorage(), trustedKeys: [given.publicKey], verifyEd25519 } });
  const pipeline = one.pipeline(PIPELINE);
  equal((await pipeline.run("Hi")).output, { kind: "text", text: "toy read: Hello (5000)" });
  await play("400");
  await rejects(pipeline.run("Hi"), PipelineFailed);
});
