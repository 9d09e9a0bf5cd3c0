/** The state of a bundle's signature. */
import type { BundleState } from "../../../build/schema";

const STATES: Record<BundleState["signature"], { text: string; tone: string; meaning: string }> = {
  valid: { text: "Valid", tone: "good", meaning: "Signed by a key of SVC_TRUSTED_KEYS." },
  unsigned: { text: "Unsigned", tone: "", meaning: "The bundle has no signature." },
  unknown_key: { text: "Unknown key", tone: "warning", meaning: "The signature is correct, but its key is not in SVC_TRUSTED_KEYS." },
  invalid: { text: "Invalid", tone: "bad", meaning: "The signature does not match the bundle. Do not use it." },
  unchecked: { text: "Not checked", tone: "warning", meaning: "The package for signatures is not installed." },
};

export function SignatureBadge({ state }: { state: BundleState["signature"] }) {
  const { text, tone, meaning } = STATES[state];
  return <span class={`badge ${tone}`} title={meaning}>{text}</span>;
}

export function signatureMeaning(state: BundleState["signature"]): string {
  return STATES[state].meaning;
}
