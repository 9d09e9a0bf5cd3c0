/** The package is small, and can be imported in both ways. */

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import { compressedSize, LIMITS } from "./size.mjs";

for (const [name, limit] of Object.entries(LIMITS)) {
  test(`dist/${name} is at most ${limit} bytes, compressed`, () => {
    const size = compressedSize(name);
    assert.ok(size <= limit, `${size} bytes`);
  });
}

test("the package has the same names in both module systems", async () => {
  const require = createRequire(import.meta.url);
  for (const name of ["@svc/client", "@svc/client/chat"]) {
    const names = (module) => Object.keys(module).filter((key) => key !== "default" && key !== "module.exports").sort();
    assert.deepEqual(names(await import(name)), names(require(name)));
    assert.ok(names(require(name)).includes("Client"));
  }
  assert.equal(require("@svc/client/package.json").name, "@svc/client");
});
