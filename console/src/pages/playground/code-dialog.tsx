/** Shows a request as code that can be copied. */
import { useState } from "preact/hooks";
import { CodeBlock } from "../../components/copy";
import { Dialog } from "../../components/dialog";
import type { ChatBody } from "./request";
import { LANGUAGES, type Language, toCode } from "./snippets";

export function CodeDialog({ body, onClose }: { body: ChatBody; onClose: () => void }) {
  const [language, setLanguage] = useState<Language>("curl");
  return (
    <Dialog title={`Code of the request to ${body.model}`} onClose={onClose}>
      <div class="stack">
        <div class="row" role="group" aria-label="Language">
          {LANGUAGES.map((name) => (
            <button key={name} type="button" aria-pressed={name === language} onClick={() => setLanguage(name)}>{name}</button>
          ))}
        </div>
        <CodeBlock code={toCode(language, body, location.origin)} label={`Code, ${language}`} />
        <p class="hint">Set the variable <code>SVC_API_KEY</code> to a key of this gateway. The page Connect makes one.</p>
      </div>
    </Dialog>
  );
}
