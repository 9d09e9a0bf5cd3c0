/**
 * Resolves a reference to a bundle: parse, platform, storage, else download, verify, read `model_metadata.json`.
 *
 * An exact version that is stored needs no network. Without a reachable registry, the newest stored version is used.
 */

import { BundleNotFound, InsufficientStorage, InvalidBundle, RegistryFailed, RegistryUnreachable, SvcError, UsageError } from "./errors.js";
import { environmentVariables, nodeModule } from "./environment.js";
import type { HttpSession, RequestOptions } from "./http.js";
import { checkName, parseReference, selectEntry, type BundleEntry } from "./reference.js";
import { createSha256, type Hash } from "./sha256.js";
import { checkSignatures, type VerifyEd25519 } from "./signature.js";
import type { BundleStorage, BundleWriter } from "./storage.js";
import { decodeUtf8 } from "./text.js";
import { listMembers, readMember, type ZipMember } from "./zip.js";

const METADATA_FILE = "model_metadata.json";
const MAX_METADATA_BYTES = 4 << 20;
const READ_BYTES = 1 << 20;
/** What one request asks for where `fetch` returns a body at once: a whole bundle may not fit into memory. */
const PART_BYTES = 2 << 20;
/** A download that makes no progress this often in a row fails. */
const MAX_RESUMES = 5;

export interface BundleOptions extends RequestOptions {
  /** The URL of the registry. Default: that of the client. */
  registryUrl?: string | undefined;
  /** Where bundles are kept. Default: in Node the registry's folder, in browsers the private file system. */
  storage?: BundleStorage | undefined;
  /** Called while bytes arrive. */
  onProgress?: ((progress: { receivedBytes: number; totalBytes: number }) => void) | undefined;
  /** The platform, such as `ios-arm64`. Default: that of Node's machine, else `any`. */
  platform?: string | undefined;
  /** Public keys in base64. If there are any, one of them must have signed a bundle. Default: SVC_TRUSTED_KEYS. */
  trustedKeys?: readonly string[] | undefined;
  /** Replaces WebCrypto's Ed25519. */
  verifyEd25519?: VerifyEd25519 | undefined;
}

/** The options of all bundles of a client. */
export type BundleDefaults = Pick<BundleOptions, "storage" | "platform" | "trustedKeys" | "verifyEd25519">;

/** The content of `model_metadata.json`. */
export interface BundleMetadata {
  model_id: string;
  version: string;
  execution_template: { type: string; [field: string]: unknown };
  files: readonly string[];
  [field: string]: unknown;
}

/** A bundle that is stored here. */
export class Bundle {
  constructor(
    readonly reference: string,
    readonly metadata: BundleMetadata,
    /** The path of the archive, where the storage has paths. */
    readonly path: string | undefined,
    private readonly members: ReadonlyMap<string, ZipMember>,
    private readonly readRange: (start: number, length: number) => Promise<Uint8Array>,
  ) {}

  /** The names of the files. */
  get files(): string[] {
    return [...this.members.keys()].filter((name) => !name.endsWith("/"));
  }

  /** Return the content of a file. Throws BundleNotFound if the bundle does not have it. */
  async read(name: string): Promise<Uint8Array> {
    const member = this.members.get(name);
    if (!member) throw new BundleNotFound(`${this.reference} has no file ${name}.`);
    return readMember(member, this.readRange);
  }
}

/** Return the platform of Node's machine, or `any`. */
function detectPlatform(): string {
  const os = nodeModule<{ platform(): string; arch(): string }>("os");
  if (!os) return "any";
  const system = { darwin: "macos", win32: "windows" }[os.platform()] ?? os.platform();
  return `${system}-${{ x64: "x86_64" }[os.arch()] ?? os.arch()}`;
}

export async function resolveBundle(
  text: string,
  registry: HttpSession | undefined,
  storage: BundleStorage,
  options: BundleOptions,
): Promise<Bundle> {
  const reference = parseReference(text);
  const platform = checkName("platform", options.platform ?? detectPlatform());
  const platforms = platform === "any" ? ["any"] : [platform, "any"];
  const local = await storedEntries(storage, reference.modelId);
  const stored = selectEntry(reference, local, platforms);
  if (stored && stored.version === reference.version) return openBundle(stored, storage);
  let remote: BundleEntry[] = [];
  if (registry) {
    try {
      remote = await fetchIndex(registry, reference.modelId, options);
    } catch (error) {
      if (!stored || !(error instanceof RegistryUnreachable)) throw error;
      console.warn(`${error.message} Using the newest stored version.`);
    }
  }
  const known = new Map([...local, ...remote].map((entry) => [keyOf(entry), entry]));
  const entry = selectEntry(reference, [...known.values()], platforms);
  if (!entry) {
    const places = registry ? `here or at ${registry.baseUrl}` : "here, and no registry is configured: set `registryUrl`";
    throw new BundleNotFound(`There is no bundle ${text.trim()} for ${platforms.join(" or ")} ${places}.`);
  }
  const isStored = local.some((each) => keyOf(each) === keyOf(entry));
  if (!isStored && registry) await download(entry, registry, storage, options);
  return openBundle(entry, storage);
}

function keyOf(entry: BundleEntry): string {
  return `${entry.model_id}/${entry.version}/${entry.target}`;
}

function fileOf(entry: BundleEntry): string {
  return `${keyOf(entry)}/${entry.model_id}.xyb`;
}

async function storedEntries(storage: BundleStorage, modelId: string): Promise<BundleEntry[]> {
  const entries: BundleEntry[] = [];
  for (const name of await storage.list(modelId)) {
    const [id, version, target, file, ...rest] = name.split("/");
    if (id === modelId && version && target && file === `${modelId}.xyb` && !rest.length) {
      entries.push({ model_id: id, version, target, size_bytes: 0, path: name });
    }
  }
  return entries;
}

async function fetchIndex(registry: HttpSession, modelId: string, options: RequestOptions): Promise<BundleEntry[]> {
  try {
    const reply = await registry.open({ method: "GET", path: `/index/${modelId}` }, { signal: options.signal, timeoutMs: options.timeoutMs });
    const index = JSON.parse(await reply.text()) as Record<string, Partial<BundleEntry> | null>;
    return Object.entries(index).flatMap(([key, entry]) => (isEntry(entry) && keyOf(entry) === key ? [entry] : []));
  } catch (error) {
    if (error instanceof SvcError && error.status === 404) return [];
    // A proxy without its registry, or a registry without its bucket.
    if (error instanceof SvcError && error.status >= 500 && !(error instanceof RegistryUnreachable)) throw new RegistryUnreachable(`${registry.baseUrl}: ${error.message}`, { cause: error });
    if (error instanceof SyntaxError) throw new RegistryFailed(`The index of ${registry.baseUrl} is not valid.`, { cause: error });
    throw error;
  }
}

function isEntry(entry: Partial<BundleEntry> | null): entry is BundleEntry {
  try {
    checkName("model_id", entry?.model_id ?? "");
    checkName("version", entry?.version ?? "");
    checkName("platform", entry?.target ?? "");
  } catch {
    return false;
  }
  return Number.isSafeInteger(entry?.size_bytes) && (entry?.size_bytes ?? -1) >= 0;
}

/** Return the keys of SVC_TRUSTED_KEYS. Throws UsageError if it is set and has none: unsigned bundles would be accepted. */
function readTrustedKeys(): string[] {
  const text = environmentVariables()["SVC_TRUSTED_KEYS"] ?? "";
  const keys = text.split(",").filter((key) => key.trim());
  if (text && !keys.length) throw new UsageError("SVC_TRUSTED_KEYS is set, but has no key. Unset it to accept bundles without a signature.");
  return keys;
}

async function download(entry: BundleEntry, registry: HttpSession, storage: BundleStorage, options: BundleOptions): Promise<void> {
  const trusted = options.trustedKeys ?? readTrustedKeys();
  if (trusted.length) await checkSignatures(entry, trusted, options.verifyEd25519);
  const partial = `${fileOf(entry)}.partial`;
  const place = storage.path?.(partial) ?? partial;
  if (!activeDownloads.has(place)) {
    activeDownloads.add(place);
    const file = new PartialFile(storage, partial);
    try {
      if (await file.open()) {
        await receive(entry, file, registry, storage, options);
        return;
      }
    } finally {
      await file.close();
      activeDownloads.delete(place);
    }
  }
  // Two downloads cannot share a file. The second one is not continued later.
  const own = new PartialFile(storage, `${partial}-${Math.random().toString(36).slice(2)}`);
  try {
    await receive(entry, own, registry, storage, options);
  } finally {
    await own.remove();
  }
}

/** The files of downloads that are running. */
const activeDownloads = new Set<string>();

/** Node and React Native have the number of the error in its message. */
const DISK_FULL = /ENOSPC|EDQUOT|No space left/i;

/** The file of a download. It stays open while bytes arrive, where the storage can do that. */
class PartialFile {
  private writer: BundleWriter | undefined;

  constructor(
    private readonly storage: BundleStorage,
    readonly name: string,
  ) {}

  /** Return whether this page may write the file. */
  async open(): Promise<boolean> {
    if (!this.storage.openWriter) return true;
    this.writer ??= await this.storage.openWriter(this.name);
    return this.writer !== undefined;
  }

  async append(bytes: Uint8Array): Promise<void> {
    await this.open();
    try {
      await (this.writer ?? { append: (part: Uint8Array) => this.storage.append(this.name, part) }).append(bytes);
    } catch (cause) {
      const { name, message } = cause as Partial<Error>;
      if (name !== "QuotaExceededError" && !DISK_FULL.test(message ?? "")) throw cause;
      throw new InsufficientStorage("The disk is full. The bytes received so far are kept.", { cause });
    }
  }

  async close(): Promise<void> {
    const { writer } = this;
    this.writer = undefined;
    await writer?.close();
  }

  async remove(): Promise<void> {
    await this.close();
    await this.storage.remove(this.name);
  }
}

async function receive(
  entry: BundleEntry,
  file: PartialFile,
  registry: HttpSession,
  storage: BundleStorage,
  options: BundleOptions,
): Promise<void> {
  let received = (await storage.size(file.name)) ?? 0;
  if (received > entry.size_bytes) {
    await file.remove();
    received = 0;
  }
  const free = await storage.freeBytes?.();
  const missing = entry.size_bytes - received;
  if (free !== undefined && missing > free) {
    throw new InsufficientStorage(`The disk has ${free} bytes free, and ${keyOf(entry)} needs ${missing} more.`);
  }
  let hash = await hashFile(storage, file.name, received);
  for (let failures = 0; received < entry.size_bytes;) {
    const before = received;
    try {
      const end = registry.canStream ? entry.size_bytes : Math.min(received + PART_BYTES, entry.size_bytes);
      const isWhole = !received && end === entry.size_bytes;
      const headers: Record<string, string> = isWhole ? {} : { range: `bytes=${received}-${end === entry.size_bytes ? "" : end - 1}` };
      const request = { method: "GET", path: `/bundles/${fileOf(entry)}`, headers };
      const reply = await registry.open(request, { signal: options.signal, timeoutMs: options.timeoutMs });
      if (received && reply.status !== 206) {
        await file.remove(); // the server sends the whole bundle
        received = 0;
        hash = createSha256();
      }
      for (let part = await reply.read(); part !== undefined; part = await reply.read()) {
        const bytes = part as Uint8Array;
        if (received + bytes.length > entry.size_bytes) {
          reply.close();
          await file.remove();
          throw new InvalidBundle(`${keyOf(entry)} is larger than its index says.`);
        }
        await file.append(bytes);
        hash.update(bytes);
        received += bytes.length;
        options.onProgress?.({ receivedBytes: received, totalBytes: entry.size_bytes });
      }
      if (received < (reply.status === 206 ? end : entry.size_bytes)) throw new RegistryUnreachable(`${registry.baseUrl} interrupted its response.`);
    } catch (error) {
      failures = received > before ? 1 : failures + 1;
      if (!(error instanceof RegistryUnreachable) || failures > MAX_RESUMES) throw error;
    }
  }
  if (entry.sha256 && hash.hex() !== entry.sha256) {
    await file.remove();
    throw new InvalidBundle(`${keyOf(entry)} does not have the SHA-256 of its index.`);
  }
  await file.close();
  await storage.rename(file.name, fileOf(entry));
}

async function hashFile(storage: BundleStorage, name: string, size: number): Promise<Hash> {
  const hash = createSha256();
  for (let offset = 0; offset < size; offset += READ_BYTES) hash.update(await storage.read(name, offset, Math.min(READ_BYTES, size - offset)));
  return hash;
}

async function openBundle(entry: BundleEntry, storage: BundleStorage): Promise<Bundle> {
  const file = fileOf(entry);
  const read = (start: number, length: number): Promise<Uint8Array> => storage.read(file, start, length);
  const members = await listMembers((await storage.size(file)) ?? 0, read);
  const member = members.get(METADATA_FILE);
  if (!member || member.size > MAX_METADATA_BYTES) throw new InvalidBundle(`${keyOf(entry)} has no ${METADATA_FILE}, or one that is too large.`);
  let metadata: BundleMetadata;
  try {
    metadata = JSON.parse(decodeUtf8(await readMember(member, read))) as BundleMetadata;
  } catch (cause) {
    if (cause instanceof SvcError) throw cause;
    throw new InvalidBundle(`${METADATA_FILE} of ${keyOf(entry)} is not JSON.`, { cause });
  }
  checkMetadata(metadata, entry, members);
  return new Bundle(`${entry.model_id}@${entry.version}`, metadata, storage.path?.(file), members, read);
}

function checkMetadata(metadata: Partial<BundleMetadata> | null, entry: BundleEntry, members: ReadonlyMap<string, ZipMember>): void {
  const problem =
    metadata?.model_id !== entry.model_id || metadata.version !== entry.version
      ? "is that of another bundle"
      : typeof metadata.execution_template?.type !== "string"
        ? "has no `execution_template` with a string `type`"
        : !Array.isArray(metadata.files)
          ? "has no list `files`"
          : (metadata.files as string[]).some((name) => !members.has(name))
            ? "names files that are missing"
            : undefined;
  if (problem) throw new InvalidBundle(`${METADATA_FILE} of ${keyOf(entry)} ${problem}.`);
}
