/** The choice of up to four columns of answers. */
import { type GetBody, get } from "../../api/client";
import { type Column, MAX_MODELS, columnLabel, modelOf, newColumn } from "./types";

type ListedModel = Extract<GetBody<"/v1/models">, { object: string }>["data"][number];

/** Returns the names of the models that chat and that the key may use. */
export async function loadChatModels(signal: AbortSignal): Promise<string[]> {
  const { data } = await get("/v1/models", {}, signal);
  return (data as ListedModel[]).filter((model) => (model.kind ?? "chat") === "chat").map((model) => model.id);
}

export function ColumnPicker(
  { available, chosen, isDisabled, onChange }: {
    available: string[]; chosen: Column[]; isDisabled: boolean; onChange: (columns: Column[]) => void;
  },
) {
  const used = chosen.map(modelOf);
  const unused = available.find((name) => !used.includes(name));
  const next = unused ?? used.at(-1);
  const replace = (index: number, model: string): void => {
    const others = chosen.filter((_, at) => at !== index);
    onChange(chosen.map((column, at) => (at === index ? newColumn(model, others) : column)));
  };
  return (
    <div class="row model-picker" role="group" aria-label="Models">
      {chosen.map((column, index) => (
        <span key={index} class="model-choice">
          <select
            aria-label={`Model ${index + 1}`} value={modelOf(column)} disabled={isDisabled}
            onChange={(event) => replace(index, event.currentTarget.value)}
          >
            {available.map((name) => (
              <option key={name} value={name}>{name === modelOf(column) ? columnLabel(column) : name}</option>
            ))}
          </select>
          {chosen.length > 1 && (
            <button
              type="button" class="quiet" aria-label={`Remove ${columnLabel(column)}`} disabled={isDisabled}
              onClick={() => onChange(chosen.filter((_, at) => at !== index))}
            >
              ×
            </button>
          )}
        </span>
      ))}
      {chosen.length < MAX_MODELS && next !== undefined && (
        <button
          type="button" disabled={isDisabled} title="The same model can answer more than once."
          onClick={() => onChange([...chosen, newColumn(next, chosen)])}
        >
          {unused === undefined ? `Add ${next} again` : "Add a model"}
        </button>
      )}
    </div>
  );
}
