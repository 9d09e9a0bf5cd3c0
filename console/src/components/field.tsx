/** A form field: its label, a hint, and the error that names it. */
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import type { ApiError } from "../api/client";

export interface ControlAttributes {
  id: string;
  name: string;
  "aria-describedby": string | undefined;
  "aria-invalid": "true" | undefined;
}

/** What the page itself found, by the names of fields. */
export type FieldProblems = Record<string, string>;

/** Renders one control. The error belongs to the field if its `param` is the field's name. */
export function Field(
  { name, label, hint, error, problems, children }: {
    name: string; label: string; hint?: string; error?: ApiError | null; problems?: FieldProblems;
    children: (attributes: ControlAttributes) => ComponentChildren;
  },
) {
  const id = useId();
  const message = problems?.[name] ?? fieldMessage(error, name);
  const describedBy = [hint && `${id}-hint`, message && `${id}-error`].filter(Boolean).join(" ");
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children({
        id, name, "aria-describedby": describedBy || undefined, "aria-invalid": message ? "true" : undefined,
      })}
      {hint && <p class="field-hint" id={`${id}-hint`}>{hint}</p>}
      {message && <p class="field-error" id={`${id}-error`} role="alert">{message}</p>}
    </div>
  );
}

/** Returns the message of an error that belongs to the field. The label names the field already. */
export function fieldMessage(error: ApiError | null | undefined, name: string): string | null {
  if (error?.param !== name) return null;
  const message = error.message.startsWith(`${name}: `) ? error.message.slice(name.length + 2) : error.message;
  return message.charAt(0).toUpperCase() + message.slice(1);
}

/** Moves the focus to the first control with an error, and shows the error. */
export function focusFirstInvalid(form: HTMLElement | null): void {
  const control = form?.querySelector<HTMLElement>("[aria-invalid=true]");
  control?.focus();
  control?.closest(".field")?.scrollIntoView({ block: "nearest" });
}
