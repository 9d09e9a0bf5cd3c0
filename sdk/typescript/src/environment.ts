/** What Node adds: environment variables, and the gateway that `svc up` runs on this machine. Empty elsewhere. */

import type { Environment } from "./address.js";

interface NodeFileSystem {
  readFileSync(path: string, encoding: "utf8"): string;
}

interface NodeProcess {
  env?: Environment;
  kill?: (pid: number, signal: number) => unknown;
  getBuiltinModule?: (name: string) => unknown;
}

function nodeProcess(): NodeProcess | undefined {
  return (globalThis as { process?: NodeProcess }).process;
}

/** Return the environment variables. They are empty where there are none, or where the program may not read them. */
export function environmentVariables(): Environment {
  const variables = ifPermitted(() => nodeProcess()?.env) ?? {};
  return new Proxy(variables, { get: (_, name) => ifPermitted(() => variables[name as string]) });
}

/** Return a value of the system, or undefined where the program may not read it: Deno asks for permissions. */
function ifPermitted<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

/** Return a module of Node, or undefined elsewhere. An import would fail in bundles for browsers. */
// eslint-disable-next-line @typescript-eslint/no-unnecessary-type-parameters -- the caller names the module type
export function nodeModule<T>(name: string): T | undefined {
  return ifPermitted(() => nodeProcess()?.getBuiltinModule?.(`node:${name}`) as T | undefined);
}

/** Return `SVC_HOME`, else `~/.svc`, or undefined outside Node. */
export function stateFolder(environment: Environment): string | undefined {
  const home = ifPermitted(() => nodeModule<{ homedir(): string }>("os")?.homedir());
  if (home === undefined) return undefined;
  return (environment["SVC_HOME"] || "~/.svc").replace(/^~(?=$|\/)/, home);
}

export interface LocalGateway {
  url: string;
  apiKey: string | undefined;
}

/** Return the gateway of a running `svc up`, with the machine's key, which is sent only to this gateway. */
export function findLocalGateway(environment: Environment): LocalGateway | undefined {
  const folder = stateFolder(environment);
  const files = nodeModule<NodeFileSystem>("fs");
  if (folder === undefined || files === undefined) return undefined;
  try {
    const record = JSON.parse(files.readFileSync(`${folder}/gateway.json`, "utf8")) as { url?: unknown; pid?: unknown };
    if (typeof record.url !== "string" || typeof record.pid !== "number" || record.pid <= 0) return undefined;
    if (!isRunning(record.pid)) return undefined;
    return { url: record.url, apiKey: readKey(files, `${folder}/api_key`) };
  } catch {
    return undefined; // `svc up` is not running
  }
}

function readKey(files: NodeFileSystem, path: string): string | undefined {
  try {
    const text = files.readFileSync(path, "utf8").trim();
    return /^svc_sk_[A-Za-z0-9_-]{43}$/.test(text) ? text : undefined;
  } catch {
    return undefined;
  }
}

function isRunning(pid: number): boolean {
  try {
    nodeProcess()?.kill?.(pid, 0);
    return true;
  } catch (error) {
    return (error as { code?: string }).code === "EPERM"; // the process belongs to another user
  }
}
