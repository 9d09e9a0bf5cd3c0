/** What an app brings for bundles: a storage, and a check of signatures in JavaScript. */

import { ed25519 } from "@noble/curves/ed25519";

export const verifyEd25519 = (publicKey, signature, message) => ed25519.verify(signature, message, publicKey);

/** Keep files in memory. */
export function memoryStorage() {
  const files = new Map();
  return {
    files,
    list: async (folder) => [...files.keys()].filter((name) => name.startsWith(`${folder}/`)),
    size: async (name) => files.get(name)?.length,
    read: async (name, start, length) => (files.get(name) ?? new Uint8Array()).slice(start, start + length),
    append: async (name, bytes) => {
      const old = files.get(name) ?? new Uint8Array();
      const joined = new Uint8Array(old.length + bytes.length);
      joined.set(old);
      joined.set(bytes, old.length);
      files.set(name, joined);
    },
    rename: async (from, to) => {
      files.set(to, files.get(from));
      files.delete(from);
    },
    remove: async (name) => void files.delete(name),
  };
}
