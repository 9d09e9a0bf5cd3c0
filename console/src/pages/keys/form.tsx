/** The form that creates a key, or changes one. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { MadeKey, ShownKey } from "../../../build/schema";
import { ApiError, requestJson } from "../../api/client";
import { BusyButton } from "../../components/busy-button";
import { Dialog } from "../../components/dialog";
import { Field, type FieldProblems, fieldMessage, focusFirstInvalid } from "../../components/field";
import { ErrorNotice } from "../../components/notices";
import { ModelListField } from "./models";
import { type KeyFields, SCOPES, changedFields, findProblems, initialFields, toRequest } from "./fields";

const SHOWN_AT_FIELD = new Set([
  "name", "scopes", "models", "rpm", "tpm", "concurrency", "budget_usd", "budget_period", "expires", "tags",
]);

export function KeyDialog(
  { apiKey, onClose, onSaved }: {
    apiKey?: ShownKey; onClose: () => void; onSaved: (saved: ShownKey | MadeKey) => void;
  },
) {
  const hasInput = useRef(false);
  const [isWarned, setIsWarned] = useState(false);
  const close = (): void => {
    if (hasInput.current && !isWarned) setIsWarned(true);
    else onClose();
  };
  const shared = { onCancel: onClose, onSaved, onInput: () => { hasInput.current = true; setIsWarned(false); } };
  return (
    <Dialog title={apiKey ? `Edit ${apiKey.name}` : "Create a key"} onClose={close}>
      {isWarned && <p class="warning-text" role="alert">What you entered is not saved. Close again to discard it.</p>}
      {apiKey
        ? <KeyForm apiKey={apiKey} action="Save" busyAction="Saving…" {...shared} />
        : <KeyForm action="Create key" busyAction="Creating…" {...shared} />}
    </Dialog>
  );
}

interface KeyFormProps<Saved> {
  /** The key to change. Without it, the form creates one. */
  apiKey?: ShownKey;
  /** Shows name, models and budget alone. */
  isShort?: boolean;
  /** The fields of a new key that differ from the defaults. */
  suggested?: Partial<KeyFields>;
  action: string;
  busyAction: string;
  onCancel?: () => void;
  /** A field has been changed. */
  onInput?: () => void;
  onSaved: (saved: Saved) => void;
}

export function KeyForm<Saved extends ShownKey | MadeKey>(
  { apiKey, isShort = false, suggested, action, busyAction, onCancel, onInput, onSaved }: KeyFormProps<Saved>,
) {
  const [initial] = useState(() => initialFields(apiKey));
  const [changes, setChanges] = useState<Partial<KeyFields>>({});
  const [problems, setProblems] = useState<FieldProblems>({});
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setIsBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const fields = { ...initial, ...suggested, ...changes };
  const set = (change: Partial<KeyFields>): void => {
    setChanges((current) => ({ ...current, ...change }));
    onInput?.();
  };
  useEffect(() => focusFirstInvalid(form.current), [error, problems]);

  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const changed = changedFields(apiKey ? initial : {}, fields);
    const found = findProblems(changed);
    setError(null);
    setProblems(found);
    if (Object.keys(found).length) return;
    setIsBusy(true);
    try {
      const [path, method] = apiKey
        ? [`/v1/admin/keys/${encodeURIComponent(apiKey.id)}`, "PATCH"] as const
        : ["/v1/admin/keys", "POST"] as const;
      onSaved(await requestJson<Saved>(path, { method, json: toRequest(changed, { isNew: !apiKey }) }));
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      setError(caught);
    }
    setIsBusy(false);
  };

  const shared = { error, problems };
  const budget = (
    <>
      <LimitField name="budget_usd" label="Budget in USD" value={fields.budget_usd} onChange={set} {...shared} />
      <Field name="budget_period" label="Budget period" {...shared}>
        {(attributes) => (
          <select {...attributes} value={fields.budget_period}
            onChange={(event) => set({ budget_period: event.currentTarget.value })}>
            <option value="total">In total</option>
            <option value="month">Each month (UTC)</option>
            <option value="day">Each day (UTC)</option>
          </select>
        )}
      </Field>
    </>
  );
  return (
    <form ref={form} class="form-grid" onSubmit={submit} noValidate>
      <Field name="name" label="Name" hint="Say which program or person uses it." {...shared}>
        {(attributes) => (
          <input {...attributes} autofocus={!isShort} value={fields.name} autocomplete="off"
            onInput={(event) => set({ name: event.currentTarget.value })} />
        )}
      </Field>
      {!isShort && <ScopeChoice selected={fields.scopes} onChange={(scopes) => set({ scopes })} {...shared} />}
      <ModelListField selected={fields.models} error={error} onChange={(models) => set({ models })} />
      {isShort ? <div class="form-columns">{budget}</div> : (
        <>
          <fieldset class="form-columns">
            <legend>Limits</legend>
            <LimitField name="rpm" label="Requests a minute" value={fields.rpm} onChange={set} {...shared} />
            <LimitField name="tpm" label="Tokens a minute" value={fields.tpm} onChange={set} {...shared} />
            <LimitField name="concurrency" label="Concurrent" value={fields.concurrency} onChange={set} {...shared} />
            {budget}
            <p class="field-hint whole-row">An empty field sets no limit of this key.</p>
          </fieldset>
          <Field name="expires" label="Expires" hint="In your time zone. Empty means never." {...shared}>
            {(attributes) => (
              <input {...attributes} type="datetime-local" value={fields.expires}
                onInput={(event) => set({ expires: event.currentTarget.value })} />
            )}
          </Field>
          <Field name="tags" label="Tags" hint="One on a line: name=value. Reports can group by them." {...shared}>
            {(attributes) => (
              <textarea {...attributes} rows={2} value={fields.tags} placeholder="team=search"
                onInput={(event) => set({ tags: event.currentTarget.value })} />
            )}
          </Field>
        </>
      )}
      {error && !SHOWN_AT_FIELD.has(error.param ?? "") && <ErrorNotice error={error} />}
      <div class={onCancel ? "dialog-actions" : "row"}>
        {onCancel && <button type="button" onClick={onCancel}>Cancel</button>}
        <BusyButton type="submit" class="primary" isBusy={isBusy}>{isBusy ? busyAction : action}</BusyButton>
      </div>
    </form>
  );
}

type LimitName = "rpm" | "tpm" | "concurrency" | "budget_usd";

interface Problems {
  error: ApiError | null;
  problems: FieldProblems;
}

function LimitField(
  { name, label, value, onChange, error, problems }: Problems & {
    name: LimitName; label: string; value: string; onChange: (change: Partial<KeyFields>) => void;
  },
) {
  return (
    <Field name={name} label={label} error={error} problems={problems}>
      {(attributes) => (
        <input {...attributes} inputMode={name === "budget_usd" ? "decimal" : "numeric"} value={value}
          placeholder="No limit" autocomplete="off"
          onInput={(event) => onChange({ [name]: event.currentTarget.value })} />
      )}
    </Field>
  );
}

function ScopeChoice(
  { selected, onChange, error, problems }: Problems & { selected: string[]; onChange: (scopes: string[]) => void },
) {
  const message = problems["scopes"] ?? fieldMessage(error, "scopes");
  return (
    <fieldset class="field" aria-describedby={message ? "scopes-error" : undefined}>
      <legend>Scopes</legend>
      <div class="choices">
        {SCOPES.map(({ scope, meaning }) => (
          <label key={scope} class="row checkbox">
            <input
              type="checkbox" name="scopes" checked={selected.includes(scope)} aria-invalid={message ? "true" : undefined}
              onChange={(event) => onChange(
                event.currentTarget.checked ? [...selected, scope] : selected.filter((other) => other !== scope),
              )}
            />
            <span>{scope} <span class="field-hint">{meaning}</span></span>
          </label>
        ))}
      </div>
      {message && <p class="field-error" id="scopes-error" role="alert">{message}</p>}
    </fieldset>
  );
}
