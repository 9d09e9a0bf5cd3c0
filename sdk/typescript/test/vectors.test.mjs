/** The shared vectors in tests/vectors, which the Python SDK runs too: what differs is a failure. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as sdk from "../build/internals.js";

function cases(name) {
  return JSON.parse(readFileSync(new URL(`../../../tests/vectors/${name}.json`, import.meta.url), "utf8")).cases;
}

/** Run a test for each case. */
function each(name, check) {
  test(`vectors: ${name}`, async (context) => {
    for (const one of cases(name)) await context.test(JSON.stringify(one).slice(0, 100), () => check(one));
  });
}

const PARAMS = { gateway_url: "gatewayUrl" };
const reader = (headers) => (name) => headers[name] ?? null;

each("urls", (one) => {
  let warned = false;
  const resolve = () => sdk.resolveGatewayUrl(one.explicit ?? undefined, one.configured ?? undefined, one.environment, () => (warned = true));
  if (one.error) return assert.throws(resolve, (error) => error instanceof sdk.InvalidRequest && error.param === (PARAMS[one.error] ?? one.error));
  assert.equal(resolve(), one.url);
  assert.equal(warned, one.warns);
});

each("errors", (one) => {
  const error = sdk.errorFromResponse(one.status, reader(one.headers), one.body);
  assert.deepEqual([error.name, error.code, error.status], [one.class, one.code, one.status]);
  if (one.message) assert.equal(error.message, one.message);
  assert.equal(error.param, one.param);
  assert.equal(error.requestId, one.request_id);
  if (one.retry_after) assert.equal(error.retryAfter, one.retry_after);
});

each("retries", (one) => {
  assert.equal(sdk.isRetryable(one.status, reader(one.headers)), one.is_retryable);
  for (const random of [0, 0.5, 1]) {
    const delay = sdk.retryDelay(one.attempt, reader(one.headers), () => random);
    if (one.min_delay === null) assert.equal(delay, undefined);
    else assert.ok(delay >= one.min_delay && delay <= one.max_delay, `${delay}`);
  }
});

each("events", (one) => {
  const data = new TextEncoder().encode(one.text);
  for (const native of [true, false]) {
    for (const size of [1, 2, 3, Math.max(1, data.length)]) {
      const splitter = new sdk.EventSplitter();
      const decoder = withoutTextDecoder(!native, () => new sdk.Utf8Decoder());
      const events = [];
      for (let at = 0; at < data.length; at += size) events.push(...splitter.feed(decoder.decode(data.subarray(at, at + size))));
      decoder.finish();
      events.push(...splitter.flush());
      assert.deepEqual(events.map(({ name, data: value }) => ({ name: name ?? null, data: value ?? null })), one.events);
    }
  }
});

test("an event in many parts is read in linear time", () => {
  const searched = { characters: 0 };
  const methods = ["includes", "indexOf", "lastIndexOf"];
  const originals = methods.map((name) => String.prototype[name]);
  const feed = (parts) => {
    const splitter = new sdk.EventSplitter();
    return parts.flatMap((part) => splitter.feed(part)).length;
  };
  for (const [index, name] of methods.entries()) {
    String.prototype[name] = function (...found) {
      searched.characters += this.length;
      return originals[index].apply(this, found);
    };
  }
  try {
    assert.equal(feed(["data: ", ...Array(1000).fill("x".repeat(1000)), "\n\n"]), 1);
  } finally {
    for (const [index, name] of methods.entries()) String.prototype[name] = originals[index];
  }
  assert.ok(searched.characters < 10 * 1_000_000, `${searched.characters} characters were searched`);
});

function withoutTextDecoder(isMissing, make) {
  const { TextDecoder } = globalThis;
  if (isMissing) delete globalThis.TextDecoder;
  try {
    return make();
  } finally {
    globalThis.TextDecoder = TextDecoder;
  }
}

test("text that is not UTF-8 is rejected, with and without TextDecoder", () => {
  for (const bytes of [[0xff], [0xc3, 0x28], [0xe2, 0x82], [0xf0, 0x9f, 0x8c], [0x80]]) {
    for (const isMissing of [false, true]) {
      const decoder = withoutTextDecoder(isMissing, () => new sdk.Utf8Decoder());
      assert.throws(() => {
        decoder.decode(Uint8Array.from(bytes));
        decoder.finish();
      }, TypeError);
    }
  }
});

each("references", (one) => {
  if (one.sorted) {
    assert.deepEqual(sdk.sortVersions([...one.sorted].reverse()), one.sorted);
    assert.equal(sdk.newestVersion(one.sorted), one.newest);
  } else if (one.error) {
    assert.throws(() => sdk.parseReference(one.text), (error) => error instanceof sdk.InvalidRequest && error.param === one.error);
  } else if (one.text !== undefined) {
    assert.deepEqual(sdk.parseReference(one.text), { modelId: one.model_id, version: one.version ?? undefined });
  } else {
    const entry = sdk.selectEntry(sdk.parseReference(one.reference), one.entries, one.platforms);
    assert.equal(entry ? `${entry.model_id}/${entry.version}/${entry.target}` : null, one.selected);
  }
});

each("signatures", async (one) => {
  const check = () => sdk.checkSignatures(one.entry, one.trusted_keys);
  if (one.is_valid) await check();
  else await assert.rejects(check, sdk.InvalidBundle);
});

each("stages", (one) => {
  if (one.error) return assert.throws(() => sdk.parseStage(one.stage, "stage"), sdk.UsageError);
  const { stage } = sdk.parseStage(one.stage, "stage");
  for (const name of ["target", "id", "reference", "model", "provider"]) assert.equal(stage[name], one[name]);
});
