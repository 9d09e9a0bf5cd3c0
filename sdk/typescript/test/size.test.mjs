/** The size of what an app loads, compressed, and that the package can be imported in both ways. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

const LIMITS = { "chat.js": 15_000, "index.js": 30_000 };

/** Return the file and the files that it imports. */
function withImports(name, seen = new Set()) {
  if (seen.has(name)) return seen;
  seen.add(name);
  const text = readFileSync(new URL(`../dist/${name}`, import.meta.url), "utf8");
  for (const [, imported] of text.matchAll(/(?:from|import)\s*["'`]\.\/([^"'`]+)["'`]/g)) withImports(imported, seen);
  return seen;
}

for (const [name, limit] of Object.entries(LIMITS)) {
  test(`dist/${name} is at most ${limit} bytes, compressed`, (context) => {
    const files = [...withImports(name)];
    const size = files.reduce((sum, file) => sum + gzipSync(readFileSync(new URL(`../dist/${file}`, import.meta.url)), { level: 9 }).length, 0);
    context.diagnostic(`${name}: ${size} bytes in ${files.length} files`);
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
