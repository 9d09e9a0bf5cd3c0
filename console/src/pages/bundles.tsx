/** The page Bundles: the models in this gateway's registry, and the upload of another. */
import { useState } from "preact/hooks";
import type { BundlePage, BundleState } from "../../build/schema";
import { get } from "../api/client";
import { useData } from "../components/data";
import { EmptyNotice, ErrorNotice, Loading } from "../components/notices";
import { addressWith, navigate, useQueryParameter } from "../router";
import { useSession } from "../session";
import { DetailDialog } from "./bundles/detail";
import { ModelCard } from "./bundles/model";
import { PullHint } from "./bundles/pull";
import { HowToPack } from "./bundles/pack";
import { UploadPanel } from "./bundles/upload-panel";
import { YankDialog } from "./bundles/yank";
import "./bundles/bundles.css";

const SERVER_PAGE_SIZE = 1000;
const MAX_BUNDLES = 10_000;
const MODELS_SHOWN_AT_ONCE = 50;

export type BundleAction = "details" | "yank";

export default function BundlesPage() {
  const scopes = new Set(useSession().scopes);
  const mayWrite = scopes.has("admin") || scopes.has("registry:write");
  if (!mayWrite && !scopes.has("registry:read")) {
    return (
      <EmptyNotice title="This needs the scope registry:read">
        <p>Log in with a key that has the scope <code>registry:read</code> to see bundles.</p>
      </EmptyNotice>
    );
  }
  return <Bundles mayWrite={mayWrite} />;
}

function Bundles({ mayWrite }: { mayWrite: boolean }) {
  const [search, setSearch] = useQueryParameter("search");
  const [shown, setShown] = useState(MODELS_SHOWN_AT_ONCE);
  const [opened, setOpened] = useQueryParameter("bundle");
  const [yanking, setYanking] = useState<BundleState | null>(null);
  const { data, error, isLoading, reload } = useData(loadBundles, []);
  const models = data ? groupByModel(data.data, search) : [];
  const close = (): void => setYanking(null);

  return (
    <div class="stack">
      {mayWrite && <UploadPanel onPublished={reload} />}
      <div class="toolbar">
        <label class="field">
          Search
          <input
            type="search" placeholder="Model, task or language" value={search}
            onInput={(event) => setSearch(event.currentTarget.value)}
          />
        </label>
        {data && <p class="hint" role="status">{describeCount(models)}</p>}
        <span class="spacer" />
        <button type="button" onClick={reload}>Refresh</button>
      </div>
      {error && <ErrorNotice error={error} onRetry={reload} />}
      {!data && isLoading && <Loading label="Loading bundles…" />}
      {data && !models.length && (
        search
          ? <EmptyNotice title="No bundle matches"><p>Clear the search to see all bundles.</p></EmptyNotice>
          : (
            <EmptyNotice title="There are no bundles yet">
              <p>
                {mayWrite ? "Upload one above, or add" : "Add"} a model of the catalog on the gateway&apos;s machine:{" "}
                <code>svc models add moonshine-tiny-en</code>
              </p>
              {!mayWrite && <HowToPack />}
            </EmptyNotice>
          )
      )}
      {data && models.length > 0 && (
        <>
          {data.trusted_keys === 0 && (
            <p class="hint">No public key is trusted: <code>SVC_TRUSTED_KEYS</code> is not set.</p>
          )}
          {data.data[0] && <PullHint command={data.data[0].pull_command} />}
          <ul class="item-list" aria-label="Models">
            {models.slice(0, shown).map(([modelId, bundles]) => (
              <ModelCard
                key={modelId} modelId={modelId} bundles={bundles} mayWrite={mayWrite}
                onAction={(action, bundle) => {
                  if (action === "yank") setYanking(bundle);
                  else navigate(addressWith({ bundle: bundle.key }));
                }}
              />
            ))}
          </ul>
        </>
      )}
      {models.length > shown && (
        <button type="button" onClick={() => setShown(shown + MODELS_SHOWN_AT_ONCE)}>Show more models</button>
      )}
      {opened && (
        <DetailDialog
          bundleKey={opened} bundle={data?.data.find((bundle) => bundle.key === opened) ?? null}
          onClose={() => setOpened("")}
        />
      )}
      {yanking && <YankDialog bundle={yanking} onClose={close} onChanged={() => { close(); reload(); }} />}
    </div>
  );
}

async function loadBundles(signal: AbortSignal): Promise<BundlePage> {
  const first = await get("/v1/admin/bundles", { limit: SERVER_PAGE_SIZE }, signal);
  const data = [...first.data];
  let page = first;
  while (page.has_more && data.length < MAX_BUNDLES) {
    page = await get("/v1/admin/bundles", { limit: SERVER_PAGE_SIZE, after: data[data.length - 1]?.key }, signal);
    data.push(...page.data);
  }
  return { ...page, data };
}

function groupByModel(bundles: BundleState[], search: string): [string, BundleState[]][] {
  const wanted = search.trim().toLowerCase();
  const models = new Map<string, BundleState[]>();
  for (const bundle of bundles) {
    const texts = [bundle.model_id, bundle.summary?.task, ...(bundle.summary?.languages ?? [])];
    if (wanted && !texts.some((text) => text?.toLowerCase().includes(wanted))) continue;
    const versions = models.get(bundle.model_id);
    if (versions) versions.push(bundle);
    else models.set(bundle.model_id, [bundle]);
  }
  for (const versions of models.values()) {
    versions.sort((a, b) => b.version.localeCompare(a.version, undefined, { numeric: true })
      || a.platform.localeCompare(b.platform));
  }
  return [...models];
}

function describeCount(models: [string, BundleState[]][]): string {
  const bundles = models.reduce((sum, [, versions]) => sum + versions.length, 0);
  return `${models.length} ${models.length === 1 ? "model" : "models"}, ${bundles} ${bundles === 1 ? "bundle" : "bundles"}`;
}
