/** A place to drop a file, with a button that chooses one. */
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";

export function DropZone(
  { label, accept, isDisabled = false, onFile, children }: {
    /** The accessible name of the file input. */
    label: string; accept?: string; isDisabled?: boolean; onFile: (file: File) => void; children: ComponentChildren;
  },
) {
  const [isOver, setIsOver] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  const choose = (files: FileList | null | undefined): void => {
    const file = files?.[0];
    if (file && !isDisabled) onFile(file);
  };
  return (
    <div
      class={`drop-zone ${isOver ? "over" : ""}`}
      onDragOver={(event) => { event.preventDefault(); setIsOver(true); }}
      onDragLeave={() => setIsOver(false)}
      onDrop={(event) => { event.preventDefault(); setIsOver(false); choose(event.dataTransfer?.files); }}
    >
      {children}
      <button type="button" disabled={isDisabled} onClick={() => input.current?.click()}>Choose a file</button>
      <input
        ref={input} type="file" class="visually-hidden" aria-label={label} tabIndex={-1} {...(accept && { accept })}
        onChange={(event) => { choose(event.currentTarget.files); event.currentTarget.value = ""; }}
      />
    </div>
  );
}
