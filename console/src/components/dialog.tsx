/** A modal dialog on the browser's own `<dialog>`, which keeps the focus inside and closes with Escape. */
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

export function Dialog(
  { title, onClose, isDrawer = false, children }: {
    title: string; onClose: () => void; isDrawer?: boolean; children: ComponentChildren;
  },
) {
  const dialog = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  useEffect(() => {
    const element = dialog.current;
    const opener = document.activeElement;
    element?.showModal();
    return () => {
      element?.close();
      if (opener instanceof HTMLElement) opener.focus({ preventScroll: true });
    };
  }, []);
  return (
    <dialog
      ref={dialog} class={isDrawer ? "drawer" : ""} aria-labelledby={titleId}
      onCancel={(event) => { event.preventDefault(); onClose(); }}
      onClick={(event) => { if (isDrawer && event.target === event.currentTarget) onClose(); }}
    >
      <div class="dialog-head">
        <h2 id={titleId}>{title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick={onClose}>×</button>
      </div>
      {children}
    </dialog>
  );
}

/** Asks before an action that cannot be undone. */
export function ConfirmDialog(
  { title, action, onConfirm, onClose, children }: {
    title: string; action: string; onConfirm: () => void; onClose: () => void; children: ComponentChildren;
  },
) {
  return (
    <Dialog title={title} onClose={onClose}>
      {children}
      <div class="dialog-actions">
        <button type="button" onClick={onClose}>Cancel</button>
        <button type="button" class="danger" onClick={onConfirm}>{action}</button>
      </div>
    </Dialog>
  );
}
