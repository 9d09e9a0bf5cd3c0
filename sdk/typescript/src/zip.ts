/** Reads members of a zip archive (.xyb) at any place, without loading the whole archive. */

import { nodeModule } from "./environment.js";
import { InvalidBundle, UsageError } from "./errors.js";
import { decodeUtf8 } from "./text.js";

const END_BYTES = 22;
const MAX_COMMENT_BYTES = 65_535;

export type ReadRange = (start: number, length: number) => Promise<Uint8Array>;

export interface ZipMember {
  name: string;
  method: number;
  compressedSize: number;
  size: number;
  offset: number;
}

/** Return the members of an archive. Throws InvalidBundle. */
export async function listMembers(size: number, read: ReadRange): Promise<Map<string, ZipMember>> {
  const start = Math.max(0, size - END_BYTES - MAX_COMMENT_BYTES);
  const tail = await read(start, size - start);
  const view = viewOf(tail);
  let end = tail.length - END_BYTES;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw new InvalidBundle("The bundle is not a zip archive.");
  const directorySize = view.getUint32(end + 12, true);
  const directoryStart = view.getUint32(end + 16, true);
  if (directoryStart === 0xffffffff || directoryStart + directorySize > size) throw new InvalidBundle("The zip archive is damaged or too large.");
  return parseDirectory(await read(directoryStart, directorySize));
}

function parseDirectory(bytes: Uint8Array): Map<string, ZipMember> {
  const members = new Map<string, ZipMember>();
  const view = viewOf(bytes);
  for (let at = 0; at + 46 <= bytes.length;) {
    if (view.getUint32(at, true) !== 0x02014b50) throw new InvalidBundle("The directory of the zip archive is damaged.");
    const nameLength = view.getUint16(at + 28, true);
    const name = decodeUtf8(bytes.subarray(at + 46, at + 46 + nameLength));
    members.set(name, {
      name,
      method: view.getUint16(at + 10, true),
      compressedSize: view.getUint32(at + 20, true),
      size: view.getUint32(at + 24, true),
      offset: view.getUint32(at + 42, true),
    });
    at += 46 + nameLength + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
  }
  return members;
}

/** Return the content of a member. Throws InvalidBundle. */
export async function readMember(member: ZipMember, read: ReadRange): Promise<Uint8Array> {
  const head = viewOf(await read(member.offset, 30));
  if (head.byteLength < 30 || head.getUint32(0, true) !== 0x04034b50) throw new InvalidBundle(`${member.name} is damaged.`);
  const start = member.offset + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const data = await read(start, member.compressedSize);
  if (member.method !== 0 && member.method !== 8) throw new InvalidBundle(`${member.name} has an unknown compression.`);
  const content = member.method === 0 ? data : await inflate(data, member);
  if (content.length !== member.size) throw new InvalidBundle(`${member.name} is damaged.`);
  return content;
}

async function inflate(data: Uint8Array, member: ZipMember): Promise<Uint8Array> {
  const zlib = nodeModule<{ inflateRawSync(bytes: Uint8Array, options: { maxOutputLength: number }): Uint8Array }>("zlib");
  try {
    if (zlib) return zlib.inflateRawSync(data, { maxOutputLength: Math.max(1, member.size) });
    if (typeof DecompressionStream === "function") {
      const stream = new Blob([data as Uint8Array<ArrayBuffer>]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
      return new Uint8Array(await new Response(stream).arrayBuffer());
    }
  } catch (cause) {
    throw new InvalidBundle(`${member.name} is damaged.`, { cause });
  }
  throw new UsageError("This platform cannot decompress a zip archive. Pack the bundle without compression.");
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
