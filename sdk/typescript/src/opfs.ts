/**
 * The browser's origin private file system as a storage of bundles.
 *
 * A worker writes the files. Only a worker can add to a file in place: a page writes a copy of the whole file, which
 * takes the place of the file when it is closed.
 */

import { sleep } from "./abort.js";
import type { BundleStorage, BundleWriter } from "./storage.js";
import { UsageError } from "./errors.js";

/** How long a page waits for a file that another page writes. A page that is closed gives its files back a little later. */
const BUSY_SECONDS = 5;
const BUSY_POLL_SECONDS = 0.1;
/** Browsers name it differently if another page writes a file. */
const BUSY_ERRORS = ["NoModificationAllowedError", "InvalidStateError"];

// The first message opens the file, the next ones add bytes, and the last one closes it. Each has one response. Old
// versions of Safari return promises from `getSize` and `close`.
const WORKER = `let file;
onmessage = async ({ data: { path, bytes } }) => {
  try {
    if (path) {
      let folder = await navigator.storage.getDirectory();
      for (const name of path.slice(0, -1)) folder = await folder.getDirectoryHandle(name, { create: true });
      file = await (await folder.getFileHandle(path.at(-1), { create: true })).createSyncAccessHandle();
    } else if (bytes) {
      if (file.write(bytes, { at: await file.getSize() }) < bytes.length) throw new DOMException("The disk is full.", "QuotaExceededError");
    } else await file.close();
    postMessage({});
  } catch ({ name, message }) {
    postMessage({ name, message });
  }
};`;

type Request = { path: string[] } | { bytes: Uint8Array } | { path?: never; bytes?: never };

/** Thrown where a worker cannot write: the content security policy forbids it, or the browser is too old. */
class WorkerMissing extends Error {}

/** A worker with one open file. */
class WorkerWriter implements BundleWriter {
  private readonly url = URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }));
  private readonly worker: Worker;

  private constructor() {
    try {
      this.worker = new Worker(this.url);
    } catch {
      throw new WorkerMissing();
    }
  }

  /** Throws WorkerMissing, or a DOMException. */
  static async open(path: string[]): Promise<WorkerWriter> {
    if (typeof Worker !== "function") throw new WorkerMissing();
    const writer = new WorkerWriter();
    try {
      await writer.call({ path });
    } catch (error) {
      writer.end();
      throw (error as Error).name === "TypeError" ? new WorkerMissing() : error; // there is no `createSyncAccessHandle`
    }
    return writer;
  }

  append(bytes: Uint8Array): Promise<void> {
    return this.call({ bytes });
  }

  async close(): Promise<void> {
    try {
      await this.call({});
    } finally {
      this.end();
    }
  }

  private end(): void {
    this.worker.terminate();
    URL.revokeObjectURL(this.url);
  }

  private call(request: Request): Promise<void> {
    return new Promise((resolve, reject) => {
      this.worker.onmessage = ({ data }: MessageEvent<{ name?: string; message?: string }>) => {
        if (data.name === undefined) resolve();
        else reject(Object.assign(new Error(data.message), { name: data.name }));
      };
      this.worker.onerror = () => reject(new WorkerMissing());
      this.worker.postMessage(request);
    });
  }
}

/** Keep bundles in the browser's origin private file system. */
export function opfsStorage(folder = "svc-bundles"): BundleStorage {
  const pathOf = (name: string): string[] => [folder, ...name.split("/")].filter(Boolean);
  const open = async (name: string, create: boolean): Promise<[FileSystemDirectoryHandle, string]> => {
    const parts = pathOf(name);
    const file = parts.pop() ?? "";
    let directory = await navigator.storage.getDirectory();
    for (const part of parts) directory = await directory.getDirectoryHandle(part, { create });
    return [directory, file];
  };
  const findHandle = async (name: string): Promise<FileSystemFileHandle | undefined> => {
    try {
      const [directory, file] = await open(name, false);
      return await directory.getFileHandle(file);
    } catch (error) {
      if ((error as Error).name === "NotFoundError" || (error as Error).name === "TypeMismatchError") return undefined;
      throw error;
    }
  };
  const find = async (name: string): Promise<File | undefined> => (await findHandle(name))?.getFile();
  const openCopy = async (name: string, keepExistingData: boolean): Promise<FileSystemWritableFileStream> => {
    const [directory, file] = await open(name, true);
    const handle = await directory.getFileHandle(file, { create: true });
    const writer = await handle.createWritable({ keepExistingData });
    if (keepExistingData) await writer.seek((await handle.getFile()).size);
    return writer;
  };
  const openWriter = async (name: string): Promise<BundleWriter | undefined> => {
    const end = Date.now() + BUSY_SECONDS * 1000;
    for (;;) {
      try {
        return await WorkerWriter.open(pathOf(name));
      } catch (error) {
        if (error instanceof WorkerMissing) break;
        if (!BUSY_ERRORS.includes((error as Error).name)) throw error;
        if (Date.now() > end) return undefined;
        await sleep(BUSY_POLL_SECONDS, undefined);
      }
    }
    const copy = await openCopy(name, true);
    return { append: (bytes) => copy.write(bytes as Uint8Array<ArrayBuffer>), close: () => copy.close() };
  };
  const remove = async (name: string): Promise<void> => {
    if (!(await findHandle(name))) return;
    const [directory, file] = await open(name, false);
    await directory.removeEntry(file);
  };
  return {
    async list(below) {
      const names: string[] = [];
      const visit = async (directory: FileSystemDirectoryHandle, prefix: string): Promise<void> => {
        for await (const [name, handle] of directory as unknown as AsyncIterable<[string, FileSystemHandle]>) {
          if (handle.kind === "file") names.push(`${prefix}/${name}`);
          else await visit(handle as FileSystemDirectoryHandle, `${prefix}/${name}`);
        }
      };
      try {
        const [parent, name] = await open(below, false);
        await visit(await parent.getDirectoryHandle(name), below);
      } catch (error) {
        if ((error as Error).name !== "NotFoundError") throw error;
      }
      return names;
    },
    size: async (name) => (await find(name))?.size,
    async read(name, start, length) {
      const file = await find(name);
      return file ? new Uint8Array(await file.slice(start, start + length).arrayBuffer()) : new Uint8Array();
    },
    openWriter,
    async append(name, bytes) {
      const writer = await openWriter(name);
      if (!writer) throw new UsageError(`Another page writes the file ${name}.`);
      try {
        await writer.append(bytes);
      } finally {
        await writer.close();
      }
    },
    async rename(from, to) {
      const handle = (await findHandle(from)) as (FileSystemFileHandle & { move?: (folder: FileSystemDirectoryHandle, name: string) => Promise<void> }) | undefined;
      if (!handle) return;
      if (typeof handle.move === "function") {
        await remove(to);
        await handle.move(...(await open(to, true)));
        return;
      }
      const copy = await openCopy(to, false);
      await copy.write(await handle.getFile()); // a stored file refers to its bytes, which no memory has to hold
      await copy.close();
      await remove(from);
    },
    remove,
  };
}
