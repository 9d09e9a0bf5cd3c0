/** The page Connect: the lines that connect a client to this gateway, and a key for it. */
import { useState } from "preact/hooks";
import type { MadeKey } from "../../build/schema";
import { CodeBlock } from "../components/copy";
import { useData } from "../components/data";
import { ErrorNotice, Loading } from "../components/notices";
import { useQueryParameter } from "../router";
import { useIsAdmin } from "../session";
import "../styles/connect.css";
import { CLIENTS, type ClientSetup } from "./connect/clients";
import { CreatedKey } from "./connect/created-key";
import { TestKey } from "./connect/test-key";
import { KeyForm } from "./keys/form";
import { loadChatModels } from "./playground/models";

const PLACEHOLDER_KEY = "YOUR_API_KEY";
/** What clients need. */
const KEY_SCOPES = ["chat", "speech"];
const PLACEHOLDER_MODEL = "gpt-4o-mini";

export default function ConnectPage() {
  const models = useData(loadChatModels, []);
  if (models.isLoading && !models.data) return <Loading label="Loading the models…" />;
  return (
    <>
      {models.error && <ErrorNotice error={models.error} onRetry={models.reload} />}
      <Connect models={models.data ?? []} />
    </>
  );
}

function Connect({ models }: { models: string[] }) {
  const isAdmin = useIsAdmin();
  const [clientId, setClientId] = useQueryParameter("client", CLIENTS[0]?.id);
  const [chosenModel, setChosenModel] = useQueryParameter("model");
  const [created, setCreated] = useState<MadeKey | null>(null);
  const client = CLIENTS.find((one) => one.id === clientId) ?? CLIENTS[0];
  if (!client) return null;
  const usable = created?.models ?? models;
  const model = usable.includes(chosenModel) ? chosenModel : defaultModel(client, usable);
  const parts = client.parts({ origin: location.origin, key: created?.key ?? PLACEHOLDER_KEY, model });
  return (
    <div class="connect">
      <section aria-labelledby="client-title">
        <h2 id="client-title">1. Choose the client</h2>
        <div class="row client-choice">
          {CLIENTS.map((one) => (
            <button key={one.id} type="button" aria-pressed={one === client} onClick={() => setClientId(one.id)}>{one.name}</button>
          ))}
        </div>
      </section>
      <section class="card stack" aria-labelledby="key-title">
        <h2 id="key-title">2. Choose the model and the key</h2>
        {usable.length > 0 && (
          <div class="field model-field">
            <label for="model">Model</label>
            <select id="model" value={model} onChange={(event) => setChosenModel(event.currentTarget.value)}>
              {usable.map((name) => <option key={name} value={name}>{name}</option>)}
            </select>
          </div>
        )}
        {!isAdmin && (
          <p>
            The lines have <code>{PLACEHOLDER_KEY}</code> in place of a key. Put your own key there. Only a key with the
            scope <code>admin</code> makes others.
          </p>
        )}
        {isAdmin && !created && (
          <KeyForm<MadeKey>
            isShort suggested={{ name: client.id, scopes: KEY_SCOPES }} action="Make a key" busyAction="Making the key…"
            onSaved={setCreated}
          />
        )}
        {created && (
          <>
            <CreatedKey created={created} />
            <TestKey key={`${created.id} ${model}`} secret={created.key} model={model} />
            <div><button type="button" class="quiet" onClick={() => setCreated(null)}>Make another key</button></div>
          </>
        )}
      </section>
      <section class="card stack" aria-labelledby="lines-title">
        <h2 id="lines-title">3. Paste the lines for {client.name}</h2>
        <p class="hint">{client.summary}</p>
        {parts.map((part) => (
          <div key={part.title} class="code-part">
            <h3>{part.title}</h3>
            <CodeBlock code={part.code} label={part.title} />
          </div>
        ))}
        {!created && <p class="hint">Replace <code>{PLACEHOLDER_KEY}</code> by a key of this gateway.</p>}
      </section>
    </div>
  );
}

function defaultModel(client: ClientSetup, models: string[]): string {
  const { preferredModel } = client;
  return models.find((name) => preferredModel?.test(name)) ?? models[0] ?? PLACEHOLDER_MODEL;
}
