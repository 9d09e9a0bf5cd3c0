/** The page Providers: their health, their models, and what is missing. */
import type { ProviderState } from "../../build/schema";
import { get } from "../api/client";
import { useData } from "../components/data";
import { AdminOnly, EmptyNotice, ErrorNotice, Loading } from "../components/notices";
import { useQueryParameter } from "../router";
import { useIsAdmin } from "../session";
import { ProviderCard } from "./providers/card";
import "./providers/providers.css";

const REFRESH_MILLISECONDS = 5000;

export default function ProvidersPage() {
  return useIsAdmin() ? <Providers /> : <AdminOnly what="The state of providers is for administrators." />;
}

function Providers() {
  const [search, setSearch] = useQueryParameter("search");
  const { data, error, isLoading, reload } = useData(
    (signal) => get("/v1/admin/providers", undefined, signal), [], REFRESH_MILLISECONDS,
  );
  const wanted = search.trim().toLowerCase();
  const found = data?.data.filter((provider) => matches(provider, wanted)) ?? [];
  const configured = found.filter((provider) => provider.configured);
  const missing = found.filter((provider) => !provider.configured);
  return (
    <div class="stack">
      <div class="toolbar">
        <label class="field">
          Search
          <input
            type="search" placeholder="Provider or model" value={search}
            onInput={(event) => setSearch(event.currentTarget.value)}
          />
        </label>
        <span class="spacer" />
        <button type="button" onClick={reload}>Refresh</button>
      </div>
      <p class="hint">
        Error rates and latencies are those of the last five minutes. A test sends a short request, which the provider bills.
      </p>
      {error && <ErrorNotice error={error} onRetry={reload} />}
      {!data && isLoading && <Loading label="Loading providers…" />}
      {data && !found.length && (
        wanted
          ? <EmptyNotice title="No provider matches"><p>Clear the search to see all providers.</p></EmptyNotice>
          : <EmptyNotice title="There are no providers"><p>Set the API key of one, such as <code>OPENAI_API_KEY</code>.</p></EmptyNotice>
      )}
      {configured.length > 0 && (
        <ul class="item-list" aria-label="Providers">
          {configured.map((provider) => <ProviderCard key={provider.name} provider={provider} onTested={reload} />)}
        </ul>
      )}
      {missing.length > 0 && <MissingProviders providers={missing} />}
    </div>
  );
}

function matches(provider: ProviderState, wanted: string): boolean {
  return [provider.name, ...provider.models.map((model) => model.id)].some((text) => text.toLowerCase().includes(wanted));
}

function MissingProviders({ providers }: { providers: ProviderState[] }) {
  return (
    <section class="stack" aria-labelledby="missing-title">
      <div>
        <h2 id="missing-title">Without an API key</h2>
        <p class="hint">Set one of the variables in the environment of the gateway, and restart it.</p>
      </div>
      <ul class="cards plain-list">
        {providers.map((provider) => (
          <li key={provider.name} class="card">
            <h3 class="provider-name">{provider.name}</h3>
            <p class="hint">Missing: {provider.missing_variables.map((variable, index) => (
              <span key={variable}>{index > 0 && " or "}<code>{variable}</code></span>
            ))}</p>
            <p class="hint">{provider.models.length} {provider.models.length === 1 ? "model" : "models"}</p>
          </li>
        ))}
      </ul>
    </section>
  );
}
