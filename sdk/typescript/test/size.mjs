/** The size of what an app loads, compressed: `npm run size` prints it. */

import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { pathToFileURL } from "node:url";

/** The largest size of each entry, in bytes. */
export const LIMITS = { "chat.js": 15_000, "index.js": 30_000 };

/** Return the names of a file of the package, and of the files that it imports. */
function withImports(name, seen = new Set()) {
  if (seen.has(name)) return seen;
  seen.add(name);
  const text = readFileSync(new URL(`../dist/${name}`, import.meta.url), "utf8");
  for (const [, imported] of text.matchAll(/(?:from|import)\s*["'`]\.\/([^"'`]+)["'`]/g)) withImports(imported, seen);
  return seen;
}

/** Return the bytes of an entry with the files that it imports, each compressed with gzip. */
export function compressedSize(name) {
  const read = (file) => readFileSync(new URL(`../dist/${file}`, import.meta.url));
  return [...withImports(name)].reduce((sum, file) => sum + gzipSync(read(file), { level: 9 }).length, 0);
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  for (const [name, limit] of Object.entries(LIMITS)) console.log(`${name}: ${compressedSize(name)} bytes compressed, of at most ${limit}`);
}
