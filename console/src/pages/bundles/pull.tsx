/** The command that downloads a bundle, and from where it can be run. */
import { CodeBlock } from "../../components/copy";

const LOOPBACK = /^(localhost|127(\.\d+){3}|\[::1\])$/;
const ALL_ADDRESSES = /^(0\.0\.0\.0|\[::\])$/;

function registryOf(command: string): URL | null {
  const address = /--registry (\S+)/.exec(command)?.[1] ?? "";
  return URL.canParse(address) ? new URL(address) : null;
}

/** Returns the command with an address to which the viewer can connect, if the registry listens on all addresses. */
export function reachableCommand(command: string): string {
  const registry = registryOf(command);
  if (!registry || !ALL_ADDRESSES.test(registry.hostname)) return command;
  return command.replace(`//${registry.hostname}`, `//${location.hostname}`);
}

export function PullCommand({ command }: { command: string }) {
  return (
    <>
      <CodeBlock code={reachableCommand(command)} label="Pull command" />
      <PullHint command={command} />
    </>
  );
}

/** Says where the command works, and what is missing elsewhere. */
export function PullHint({ command }: { command: string }) {
  const registry = registryOf(command);
  if (!registry) {
    return (
      <p class="hint">
        The command works on the gateway&apos;s machine. Elsewhere, add <code>--registry URL</code> with the address of a registry
        that serves these bundles. <code>SVC_REGISTRY_URL</code> of the gateway adds it here.
      </p>
    );
  }
  if (!LOOPBACK.test(registry.hostname)) return null;
  return (
    <p class={LOOPBACK.test(location.hostname) ? "hint" : "warning-text"}>
      The registry at <code>{registry.origin}</code> can be reached on the gateway&apos;s machine alone, and so the command works
      only there. <code>svc registry serve --host 0.0.0.0</code> serves the bundles to other machines. Then set{" "}
      <code>SVC_REGISTRY_URL</code> of the gateway to its address.
    </p>
  );
}
