/** A modal dialog on the browser's own `<dialog>`, which keeps the focus inside and closes with Escape. */
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { BusyButton } from "./busy-button";

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

/** Asks before an action that cannot be undone. The button is busy until the promise of `onConfirm` is settled. */
export function ConfirmDialog(
  { title, action, onConfirm, onClose, children }: {
    title: string; action: string; onConfirm: () => Promise<void> | void; onClose: () => void;
    children: ComponentChildren;
  },
) {
  const [isBusy, setIsBusy] = useState(false);
  const confirm = async (): Promise<void> => {
    setIsBusy(true);
    try {
      await onConfirm();
    } finally {
      setIsBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      {children}
      <div class="dialog-actions">
        <button type="button" onClick={onClose}>Cancel</button>
        <BusyButton type="button" class="danger" isBusy={isBusy} onClick={() => void confirm()}>{action}</BusyButton>
      </div>
    </Dialog>
  );
}
