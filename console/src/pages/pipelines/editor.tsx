/** A text field with line numbers. */
import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";

export function Editor(
  { inputRef, value, errorLines, onChange }: {
    inputRef: RefObject<HTMLTextAreaElement | null>; value: string; errorLines: number[]; onChange: (value: string) => void;
  },
) {
  const gutter = useRef<HTMLDivElement>(null);
  const lines = value.split("\n").length;
  const followScroll = (): void => {
    if (gutter.current && inputRef.current) gutter.current.scrollTop = inputRef.current.scrollTop;
  };
  useEffect(followScroll, [lines]);
  return (
    <div class="editor">
      <div ref={gutter} class="editor-gutter" aria-hidden="true">
        {Array.from({ length: lines }, (_, index) => (
          <div key={index} class={errorLines.includes(index + 1) ? "error-line" : ""}>{index + 1}</div>
        ))}
      </div>
      <textarea
        ref={inputRef} aria-label="Pipeline definition in YAML" wrap="off" spellcheck={false} rows={20} value={value}
        aria-invalid={errorLines.length ? "true" : undefined} autocapitalize="off"
        onInput={(event) => onChange(event.currentTarget.value)} onScroll={followScroll}
      />
    </div>
  );
}

/** Moves the focus to a line, and selects it from the column on. Both count from 1. */
export function selectLine(editor: HTMLTextAreaElement, line: number, column: number): void {
  const lines = editor.value.split("\n");
  const lineStart = lines.slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0);
  const lineEnd = Math.min(editor.value.length, lineStart + (lines[line - 1] ?? "").length);
  editor.focus();
  editor.setSelectionRange(Math.min(lineStart + column - 1, lineEnd), lineEnd);
  editor.scrollTop = (editor.scrollHeight / lines.length) * Math.max(0, line - 5);
}
