/** Signatures of bundles: Ed25519 (RFC 8032) over {id, platform, sha256, size, version}. */

import { InvalidBundle, UsageError } from "./errors.js";
import type { BundleEntry } from "./reference.js";

/** Return whether an Ed25519 signature of a message is valid. */
export type VerifyEd25519 = (publicKey: Uint8Array, signature: Uint8Array, message: Uint8Array) => boolean | Promise<boolean>;

/** Throw InvalidBundle unless one of the trusted keys has signed the entry. */
export async function checkSignatures(entry: BundleEntry, trustedKeys: readonly string[], verify: VerifyEd25519 = verifyWithWebCrypto): Promise<void> {
  if (!Array.isArray(trustedKeys)) throw new UsageError("`trustedKeys` is not a list.", { param: "trustedKeys" });
  const trusted = new Set(trustedKeys.map(normalizePublicKey));
  const signatures = entry.signatures ?? [];
  if (entry.sha256) {
    const message = signedStatement(entry);
    for (const signature of signatures) {
      const key = decodeBase64(signature.key);
      const value = decodeBase64(signature.value);
      if (!key || !value || key.length !== 32 || value.length !== 64 || !trusted.has(signature.key)) continue;
      if (await verify(key, value, message)) return;
    }
  }
  const problem = signatures.length ? "has no valid signature of a trusted key" : "is not signed";
  throw new InvalidBundle(`${entry.model_id}/${entry.version}/${entry.target} is rejected: it ${problem}.`);
}

/** Return the signed bytes: JSON with sorted keys and no spaces. */
function signedStatement(entry: BundleEntry): Uint8Array {
  const { model_id: id, target: platform, sha256, size_bytes: size, version } = entry;
  return new TextEncoder().encode(JSON.stringify({ id, platform, sha256: sha256 ?? null, size, version }));
}

/** Verify with WebCrypto. Throws UsageError where WebCrypto lacks Ed25519. */
export const verifyWithWebCrypto: VerifyEd25519 = async (publicKey, signature, message) => {
  const subtle = (globalThis as { crypto?: { subtle?: SubtleCrypto } }).crypto?.subtle;
  if (!subtle) throw new UsageError("There is no WebCrypto here. Pass a function as `verifyEd25519`.");
  let key: CryptoKey;
  try {
    key = await subtle.importKey("raw", publicKey as Uint8Array<ArrayBuffer>, "Ed25519", false, ["verify"]);
  } catch (cause) {
    if ((cause as Error).name === "DataError") return false;
    throw new UsageError("WebCrypto lacks Ed25519 here. Pass a function as `verifyEd25519`.", { cause });
  }
  return subtle.verify("Ed25519", key, signature as Uint8Array<ArrayBuffer>, message as Uint8Array<ArrayBuffer>);
};

/** Return the bytes of base64, or undefined if it is not valid. */
export function decodeBase64(text: string): Uint8Array | undefined {
  if (!/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(text)) return undefined;
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function normalizePublicKey(key: string): string {
  const text = key.trim();
  if (decodeBase64(text)?.length !== 32) {
    throw new UsageError(`${JSON.stringify(text.slice(0, 60))} is not a public key: 32 bytes in base64, as printed by \`svc registry sign-key\`.`);
  }
  return text;
}
