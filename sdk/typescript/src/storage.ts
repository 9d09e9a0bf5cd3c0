/** Where bundles are kept: Node's file system, or an app's own storage. `opfs.ts` has that of browsers. */

import { nodeModule } from "./environment.js";
import { UsageError } from "./errors.js";

/** A file that is open at its end. */
export interface BundleWriter {
  append: (bytes: Uint8Array) => Promise<void>;
  /** Close the file. It keeps what was added. */
  close: () => Promise<void>;
}

/** Files by name. Names have `/` between folders. React Native apps implement it with their file system. */
export interface BundleStorage {
  /** Return the names of all files below a folder, or an empty list. */
  list: (folder: string) => Promise<string[]>;
  /** Return the bytes of a file, or undefined if there is none. */
  size: (name: string) => Promise<number | undefined>;
  /** Return a part of a file. It is shorter at the end of the file. */
  read: (name: string, start: number, length: number) => Promise<Uint8Array>;
  /** Add bytes to the end of a file. Creates the file and its folders. */
  append: (name: string, bytes: Uint8Array) => Promise<void>;
  /** Open a file for a download, which then does not call `append`. Returns undefined if another page writes the file. */
  openWriter?: (name: string) => Promise<BundleWriter | undefined>;
  /** Rename a file. Replaces one with the new name. */
  rename: (from: string, to: string) => Promise<void>;
  /** Remove a file, if there is one. */
  remove: (name: string) => Promise<void>;
  /** Return the free space, or undefined if it is unknown. A download that needs more is refused before it starts. */
  freeBytes?: () => Promise<number | undefined>;
  /** Return the path of a file, for programs that open it themselves. */
  path?: (name: string) => string;
}

interface FileHandle {
  read(buffer: Uint8Array, offset: number, length: number, position: number): Promise<{ bytesRead: number }>;
  close(): Promise<void>;
}

interface NodeFiles {
  readdir(path: string, options: { recursive: true; withFileTypes: true }): Promise<{ name: string; parentPath?: string; path?: string; isFile(): boolean }[]>;
  stat(path: string): Promise<{ size: number }>;
  open(path: string, flags: "r"): Promise<FileHandle>;
  appendFile(path: string, bytes: Uint8Array): Promise<void>;
  mkdir(path: string, options: { recursive: true }): Promise<unknown>;
  rename(from: string, to: string): Promise<void>;
  rm(path: string, options: { force: true }): Promise<void>;
  statfs?(path: string): Promise<{ blocks: number; bavail: number; bsize: number }>;
}

/** Keep bundles in a folder. Only Node has it. */
export function nodeStorage(folder: string): BundleStorage {
  const files = nodeModule<NodeFiles>("fs/promises");
  if (!files) throw new UsageError("`nodeStorage` needs Node.");
  const path = (name: string): string => `${folder}/${name}`;
  const makeParent = (name: string): Promise<unknown> => files.mkdir(path(name).replace(/\/[^/]*$/, ""), { recursive: true });
  return {
    path,
    async list(below) {
      try {
        const entries = await files.readdir(path(below), { recursive: true, withFileTypes: true });
        return entries
          .filter((entry) => entry.isFile())
          .map((entry) => `${entry.parentPath ?? entry.path ?? ""}/${entry.name}`.replaceAll("\\", "/").slice(folder.length + 1));
      } catch (error) {
        if (isMissing(error)) return [];
        throw error;
      }
    },
    async size(name) {
      try {
        return (await files.stat(path(name))).size;
      } catch (error) {
        if (isMissing(error)) return undefined;
        throw error;
      }
    },
    async read(name, start, length) {
      const handle = await files.open(path(name), "r");
      try {
        const buffer = new Uint8Array(length);
        let filled = 0;
        while (filled < length) {
          const { bytesRead } = await handle.read(buffer, filled, length - filled, start + filled);
          if (!bytesRead) break;
          filled += bytesRead;
        }
        return buffer.subarray(0, filled);
      } finally {
        await handle.close();
      }
    },
    async append(name, bytes) {
      await makeParent(name);
      await files.appendFile(path(name), bytes);
    },
    async freeBytes() {
      await files.mkdir(folder, { recursive: true });
      const disk = await files.statfs?.(folder);
      return disk?.blocks ? disk.bavail * disk.bsize : undefined; // some network file systems have no numbers
    },
    async rename(from, to) {
      await makeParent(to);
      await files.rename(path(from), path(to));
    },
    remove: (name) => files.rm(path(name), { force: true }),
  };
}

function isMissing(error: unknown): boolean {
  const { code } = error as { code?: string };
  return code === "ENOENT" || code === "ENOTDIR";
}
