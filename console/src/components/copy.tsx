/** A piece of text with a button that copies it. */
import { useState } from "preact/hooks";

/** Copies text. Without a secure context, browsers have only the older way, which copies what is selected. */
async function copyText(text: string): Promise<void> {
  if (window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.readOnly = true;
  field.className = "visually-hidden";
  // Outside of an open modal dialog, nothing can be selected.
  const focused = document.activeElement;
  (focused?.closest("dialog") ?? document.body).append(field);
  field.select();
  // eslint-disable-next-line @typescript-eslint/no-deprecated -- there is no other way over plain HTTP
  const isCopied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  if (!isCopied) throw new Error("The browser refuses to copy.");
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [state, setState] = useState<"idle" | "copied" | "failed">("idle");
  const copy = async (): Promise<void> => {
    try {
      await copyText(text);
      setState("copied");
    } catch {
      setState("failed");
    }
    setTimeout(() => setState("idle"), 2000);
  };
  return (
    <button type="button" class="copy" onClick={() => void copy()}>
      {/* The label keeps its place, so that the button keeps its width. */}
      <span class="copy-label" data-label={label}>
        <span aria-live="polite">{state === "copied" ? "Copied" : state === "failed" ? "Not copied" : label}</span>
      </span>
    </button>
  );
}

export function CodeBlock({ code, label }: { code: string; label: string }) {
  return (
    <div class="code-block">
      <pre tabIndex={0} role="region" aria-label={label}><code>{code}</code></pre>
      <CopyButton text={code} />
    </div>
  );
}
