/** The models that a key may use: a list with a field that adds to it. */
import { useId, useState } from "preact/hooks";
import { type ApiError, get } from "../../api/client";
import { useData } from "../../components/data";
import { fieldMessage } from "../../components/field";

export function ModelListField(
  { selected, error, onChange }: {
    selected: string[]; error: ApiError | null; onChange: (models: string[]) => void;
  },
) {
  const [text, setText] = useState("");
  const id = useId();
  const known = useData((signal) => get("/v1/models", undefined, signal), []).data?.data ?? [];
  const message = fieldMessage(error, "models");
  const add = (): void => {
    const added = text.split(/[\s,]+/).filter((name) => name && !selected.includes(name));
    if (added.length) onChange([...selected, ...added]);
    setText("");
  };
  return (
    <div class="field">
      <label for={id}>Models</label>
      {selected.length > 0 && (
        <ul class="chips" aria-label="Selected models">
          {selected.map((model) => (
            <li key={model}>
              <code>{model}</code>
              <button
                type="button" class="quiet" aria-label={`Remove ${model}`}
                onClick={() => onChange(selected.filter((other) => other !== model))}
              >
                ×
              </button>
            </li>
          ))}
        </ul>
      )}
      <div class="row model-input">
        <input
          id={id} name="models" list={`${id}-known`} value={text} autocomplete="off"
          placeholder={selected.length ? "Add another model" : "All models"}
          aria-describedby={`${id}-hint`} aria-invalid={message ? "true" : undefined}
          onInput={(event) => setText(event.currentTarget.value)} onBlur={add}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || !text.trim()) return;
            event.preventDefault();
            add();
          }}
        />
        <button type="button" onClick={add}>Add model</button>
      </div>
      <datalist id={`${id}-known`}>
        {known.map((model) => <option key={model.id} value={model.id} />)}
      </datalist>
      <p class="field-hint" id={`${id}-hint`}>Without a model here, the key may use all of them.</p>
      {message && <p class="field-error" role="alert">{message}</p>}
    </div>
  );
}
