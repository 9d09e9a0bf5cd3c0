/** The page Connect: the lines that connect a client to this gateway, with a key for it. */
import { CodeBlock } from "../components/copy";
import { useData } from "../components/data";
import { EmptyNotice, ErrorNotice, Loading } from "../components/notices";
import { pagePath, useQueryParameter } from "../router";
import { useIsAdmin } from "../session";
import "../styles/connect.css";
import { CLIENT_GROUPS, CLIENTS, type ClientSetup } from "./connect/clients";
import { KeyChoice, useChosenKey } from "./connect/key-choice";
import { type UsableModel, loadUsableModels } from "./connect/models";
import { TestKey } from "./connect/test-key";

const PLACEHOLDER_KEY = "YOUR_API_KEY";
const PLACEHOLDER_MODEL: UsableModel = { id: "YOUR_MODEL", contextWindow: 0, maxOutputTokens: null };

export default function ConnectPage() {
  const models = useData((signal) => loadUsableModels("", signal), []);
  // Once shown, the page stays: it alone has the secret of a new key.
  if (models.isLoading && !models.data && !models.error) return <Loading label="Loading the models…" />;
  return (
    <>
      {models.error && <ErrorNotice error={models.error} onRetry={models.reload} />}
      <Connect models={models.data ?? []} isKnown={models.data !== null} />
    </>
  );
}

function Connect({ models, isKnown }: { models: UsableModel[]; isKnown: boolean }) {
  const [clientId, setClientId] = useQueryParameter("client", CLIENTS[0]?.id);
  const [chosenModel, setChosenModel] = useQueryParameter("model");
  const chosenKey = useChosenKey();
  const client = CLIENTS.find((one) => one.id === clientId) ?? CLIENTS[0];
  if (!client) return null;
  const { secret, check } = chosenKey;
  const usable = check.models ?? models;
  const model = usable.find(({ id }) => id === chosenModel) ?? defaultModel(client, usable);
  const { contextWindow, maxOutputTokens } = model;
  const parts = client.parts({
    origin: location.origin, key: secret || PLACEHOLDER_KEY, model: model.id,
    limits: maxOutputTokens === null ? null : { context: contextWindow, output: maxOutputTokens },
  });
  const placeholders = [!secret && PLACEHOLDER_KEY, model === PLACEHOLDER_MODEL && model.id].filter((name) => name !== false);
  return (
    <div class="connect">
      <section aria-labelledby="client-title">
        <h2 id="client-title">1. Choose the client</h2>
        <ClientChoice chosen={client} onChoose={setClientId} />
      </section>
      <section class="card stack" aria-labelledby="key-title">
        <h2 id="key-title">2. Choose the key and the model</h2>
        <KeyChoice chosen={chosenKey} clientId={client.id} />
        {usable.length > 0
          ? <ModelChoice models={usable} chosen={model.id} onChoose={setChosenModel} />
          : (isKnown || check.models) && <NoModel isKeyChecked={check.models !== null} />}
        {secret !== "" && model !== PLACEHOLDER_MODEL && <TestKey key={`${secret} ${model.id}`} secret={secret} model={model.id} />}
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
        {placeholders.length > 0 && <ReplaceHint placeholders={placeholders} />}
      </section>
    </div>
  );
}

function ClientChoice({ chosen, onChoose }: { chosen: ClientSetup; onChoose: (id: string) => void }) {
  return (
    <div class="client-groups">
      {CLIENT_GROUPS.map(({ name, clients }) => (
        <div key={name} role="group" aria-label={name}>
          <p class="hint" aria-hidden="true">{name}</p>
          <div class="row">
            {clients.map((one) => (
              <button key={one.id} type="button" aria-pressed={one === chosen} onClick={() => onChoose(one.id)}>{one.name}</button>
            ))}
          </div>
        </div>
      ))}
    </div>
  );
}

function ModelChoice({ models, chosen, onChoose }: { models: UsableModel[]; chosen: string; onChoose: (id: string) => void }) {
  return (
    <div class="field model-field">
      <label for="model">Model</label>
      <select id="model" value={chosen} onChange={(event) => onChoose(event.currentTarget.value)}>
        {models.map(({ id }) => <option key={id} value={id}>{id}</option>)}
      </select>
    </div>
  );
}

function NoModel({ isKeyChecked }: { isKeyChecked: boolean }) {
  const isAdmin = useIsAdmin();
  return (
    <EmptyNotice title={isKeyChecked ? "The key may use no chat model of this gateway" : "This gateway has no chat model that you may use"}>
      <p>
        {isKeyChecked && "Allow another model for the key, or choose another key. "}
        {isAdmin && <><a href={pagePath("Providers")}>The page Providers</a> says which variable a provider needs.</>}
      </p>
    </EmptyNotice>
  );
}

function ReplaceHint({ placeholders }: { placeholders: string[] }) {
  return (
    <p class="hint">
      Replace{" "}
      {placeholders.map((name, index) => <span key={name}>{index > 0 && " and "}<code>{name}</code></span>)}
      {placeholders.includes(PLACEHOLDER_KEY) && ": step 2 puts a key into the lines"}.
    </p>
  );
}

function defaultModel(client: ClientSetup, models: UsableModel[]): UsableModel {
  const { preferredModel } = client;
  return models.find(({ id }) => preferredModel?.test(id)) ?? models[0] ?? PLACEHOLDER_MODEL;
}
