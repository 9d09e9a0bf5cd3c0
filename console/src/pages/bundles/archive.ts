/**
 * Reads the name of a bundle from its `model_metadata.json`, so that nobody types it.
 * The zip format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
 */

export interface BundleName {
  model_id: string;
  version: string;
  platform: string;
}

export class NotABundle extends Error {}

const END_OF_DIRECTORY = 0x06054b50;
const DIRECTORY_ENTRY = 0x02014b50;
const MAX_END_BYTES = 22 + 0xffff;
const MAX_DIRECTORY_BYTES = 16 << 20;
const MAX_METADATA_BYTES = 1 << 20;
const ZIP_MAGIC = 0x04034b50;
const ZSTANDARD_MAGIC = 0xfd2fb528;
const METADATA = "model_metadata.json";

/** Returns the name, or null if the archive is a tar or too large to look into. Throws `NotABundle`. */
export async function readBundleName(file: File): Promise<BundleName | null> {
  const start = await readView(file, 0, 4);
  const magic = start.byteLength === 4 ? start.getUint32(0, true) : 0;
  if (magic === ZSTANDARD_MAGIC) return null;
  if (magic !== ZIP_MAGIC) throw new NotABundle(`${file.name} is not a bundle. A bundle is a .xyb file, made by svc bundle pack.`);
  const entry = await findEntry(file, METADATA);
  if (entry === null) return null;
  try {
    return toName(JSON.parse(await readEntry(file, entry)));
  } catch {
    throw new NotABundle(`The ${METADATA} in ${file.name} cannot be read. Build the bundle again with svc bundle pack.`);
  }
}

interface Entry {
  isDeflated: boolean;
  compressedBytes: number;
  bytes: number;
  headerOffset: number;
}

/** Returns null if the directory is that of a zip64 archive. */
async function findEntry(file: File, name: string): Promise<Entry | null> {
  const tailOffset = Math.max(0, file.size - MAX_END_BYTES);
  const tail = await readView(file, tailOffset, file.size);
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== END_OF_DIRECTORY) end -= 1;
  if (end < 0) throw new NotABundle(`${file.name} is cut off: the end of the archive is missing. Copy the file again.`);
  const directoryBytes = tail.getUint32(end + 12, true);
  const directoryOffset = tail.getUint32(end + 16, true);
  if (directoryOffset === 0xffffffff || directoryBytes > MAX_DIRECTORY_BYTES) return null;
  const directory = await readView(file, directoryOffset, directoryOffset + directoryBytes);
  for (let at = 0; at + 46 <= directory.byteLength && directory.getUint32(at, true) === DIRECTORY_ENTRY;) {
    const nameBytes = directory.getUint16(at + 28, true);
    const entryName = new TextDecoder().decode(new Uint8Array(directory.buffer, at + 46, Math.min(nameBytes, directory.byteLength - at - 46)));
    if (entryName === name) {
      return {
        isDeflated: directory.getUint16(at + 10, true) === 8,
        compressedBytes: directory.getUint32(at + 20, true),
        bytes: directory.getUint32(at + 24, true),
        headerOffset: directory.getUint32(at + 42, true),
      };
    }
    at += 46 + nameBytes + directory.getUint16(at + 30, true) + directory.getUint16(at + 32, true);
  }
  throw new NotABundle(`${file.name} is not a bundle: it has no ${METADATA}.`);
}

async function readEntry(file: File, entry: Entry): Promise<string> {
  if (entry.bytes > MAX_METADATA_BYTES || entry.compressedBytes > MAX_METADATA_BYTES) throw new Error("too large");
  const header = await readView(file, entry.headerOffset, entry.headerOffset + 30);
  const dataOffset = entry.headerOffset + 30 + header.getUint16(26, true) + header.getUint16(28, true);
  const data = file.slice(dataOffset, dataOffset + entry.compressedBytes);
  if (!entry.isDeflated) return data.text();
  return new Response(data.stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
}

async function readView(file: File, start: number, end: number): Promise<DataView> {
  return new DataView(await file.slice(start, end).arrayBuffer());
}

function toName(metadata: unknown): BundleName {
  const fields = metadata as Record<string, unknown>;
  const text = (name: string): string => (typeof fields[name] === "string" ? fields[name] : "");
  return { model_id: text("model_id"), version: text("version"), platform: text("platform") || "any" };
}
