/** The system prompt, the parameters and the tools of a conversation. */
import { useRef } from "preact/hooks";
import { lineAndColumn } from "./json-source";
import { NUMBERS, type SettingsProblem } from "./request";
import type { ChatSettings } from "./types";

const EFFORTS = ["", "minimal", "low", "medium", "high"];
const EXAMPLE_TOOLS = JSON.stringify([{
  type: "function",
  function: {
    name: "get_weather",
    description: "Returns the weather of a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}], null, 2);

interface Props {
  settings: ChatSettings;
  problems: SettingsProblem[];
  onChange: (settings: ChatSettings) => void;
}

export function SettingsPanel({ settings, problems, onChange }: Props) {
  const set = (field: keyof ChatSettings, value: string): void => onChange({ ...settings, [field]: value });
  return (
    <div class="card stack settings">
      <div class="field">
        <label for="system">System prompt</label>
        <textarea id="system" rows={3} value={settings.system} onInput={(event) => set("system", event.currentTarget.value)} />
      </div>
      <div class="parameters">
        {NUMBERS.map(({ field, label, minimum, maximum, step }) => {
          const problem = problems.find((one) => one.field === field);
          return (
            <div key={field} class="field">
              <label for={field}>{label}</label>
              <input
                id={field} inputMode={step < 1 ? "decimal" : "numeric"} value={settings[field]} autocomplete="off"
                placeholder={maximum < 10 ? `${minimum} to ${maximum}` : "default"}
                aria-invalid={problem !== undefined} aria-describedby={problem && `${field}-problem`}
                onInput={(event) => set(field, event.currentTarget.value)}
              />
              {problem && <p id={`${field}-problem`} class="field-error">{problem.message}</p>}
            </div>
          );
        })}
        <div class="field">
          <label for="effort">Reasoning effort</label>
          <select id="effort" value={settings.reasoningEffort} onChange={(event) => set("reasoningEffort", event.currentTarget.value)}>
            {EFFORTS.map((effort) => <option key={effort} value={effort}>{effort || "default"}</option>)}
          </select>
        </div>
      </div>
      <div class="json-fields">
        <JsonField
          id="tools" label="Tools (JSON)" text={settings.tools} onChange={(text) => set("tools", text)}
          problem={problems.find((one) => one.field === "tools")} example={EXAMPLE_TOOLS}
          help="A list of functions. The playground shows the calls, and you type what a tool returns."
        />
        <JsonField
          id="extra" label="More parameters (JSON)" text={settings.extra} onChange={(text) => set("extra", text)}
          problem={problems.find((one) => one.field === "extra")} example={'{"stop": ["END"]}'}
          help="An object of other fields of the request."
        />
      </div>
    </div>
  );
}

function JsonField(
  { id, label, text, help, example, problem, onChange }: {
    id: string; label: string; text: string; help: string; example: string; problem: SettingsProblem | undefined;
    onChange: (text: string) => void;
  },
) {
  const textarea = useRef<HTMLTextAreaElement>(null);
  const offset = problem?.offset ?? 0;
  const { line, column } = lineAndColumn(text, offset);
  const goToProblem = (): void => {
    textarea.current?.focus();
    textarea.current?.setSelectionRange(offset, Math.min(offset + 1, text.length));
  };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <textarea
        id={id} ref={textarea} class="mono" rows={text ? 8 : 2} value={text} spellcheck={false}
        aria-invalid={problem !== undefined} aria-describedby={problem ? `${id}-help ${id}-problem` : `${id}-help`}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
      {problem && (
        <p id={`${id}-problem`} class="field-error" aria-live="polite">
          Line {line}, column {column}: {problem.message}{" "}
          <button type="button" class="link" onClick={goToProblem}>Go to the place</button>
        </p>
      )}
      <p id={`${id}-help`} class="hint">
        {help}{" "}
        {!text && (
          <button type="button" class="link" aria-label={`Insert an example: ${label}`} onClick={() => onChange(example)}>
            Insert an example
          </button>
        )}
      </p>
    </div>
  );
}
