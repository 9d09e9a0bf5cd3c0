/** Keeps bundles in the files of the app, with expo-file-system. */

import type { BundleStorage } from "@svc/client";
import { Directory, File, FileMode, Paths } from "expo-file-system";

/** Return a storage for `new Client({ bundles: { storage } })`. The system does not delete its files. */
export function expoStorage(folder = "svc-bundles"): BundleStorage {
  const fileOf = (name: string): File => new File(Paths.document, folder, ...name.split("/"));
  return {
    path: (name) => fileOf(name).uri,
    async list(below) {
      const names: string[] = [];
      const visit = (directory: Directory, prefix: string): void => {
        for (const entry of directory.list()) {
          if (entry instanceof File) names.push(`${prefix}/${entry.name}`);
          else visit(entry, `${prefix}/${entry.name}`);
        }
      };
      const root = new Directory(Paths.document, folder, ...below.split("/"));
      if (root.exists) visit(root, below);
      return names;
    },
    async size(name) {
      const file = fileOf(name);
      return file.exists ? file.size : undefined;
    },
    async read(name, start, length) {
      const handle = fileOf(name).open(FileMode.ReadOnly);
      try {
        handle.offset = start;
        return handle.readBytes(Math.max(0, Math.min(length, (handle.size ?? 0) - start)));
      } finally {
        handle.close();
      }
    },
    async append(name, bytes) {
      const file = fileOf(name);
      if (!file.exists) file.create({ intermediates: true });
      const handle = file.open(FileMode.Append);
      try {
        handle.writeBytes(bytes);
      } finally {
        handle.close();
      }
    },
    async rename(from, to) {
      const target = fileOf(to);
      if (!target.parentDirectory.exists) target.parentDirectory.create({ intermediates: true });
      await fileOf(from).move(target, { overwrite: true });
    },
    async remove(name) {
      const file = fileOf(name);
      if (file.exists) file.delete();
    },
  };
}
