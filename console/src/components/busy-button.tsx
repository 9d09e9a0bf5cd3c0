/** A button whose action takes a moment. Unlike a disabled button, it keeps the focus of the keyboard meanwhile. */
import type { ButtonHTMLAttributes } from "preact";

export function BusyButton(
  { isBusy, onClick, children, ...attributes }: Omit<ButtonHTMLAttributes, "onClick"> & { isBusy: boolean; onClick?: () => void },
) {
  return (
    <button
      {...attributes} aria-disabled={isBusy ? "true" : undefined}
      onClick={(event) => {
        if (isBusy) event.preventDefault(); // also of the form
        else onClick?.();
      }}
    >
      {children}
    </button>
  );
}
