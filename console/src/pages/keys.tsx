/** The page Keys: the list of keys, and the dialogs that create and change them. */
import { useState } from "preact/hooks";
import type { ConfiguredKey, KeyUse, MadeKey, ShownKey } from "../../build/schema";
import { get } from "../api/client";
import { useData } from "../components/data";
import { EmptyNotice, ErrorNotice, Loading } from "../components/notices";
import { useQueryParameter } from "../router";
import { useIsAdmin } from "../session";
import { KeyCard } from "./keys/card";
import { KeyDialog } from "./keys/form";
import { KeyUseLinks } from "./keys/links";
import { OwnKey } from "./keys/own";
import { RevokeDialog } from "./keys/revoke";
import { RotateDialog } from "./keys/rotate";
import { SecretDialog } from "./keys/secret";
import "./keys/keys.css";

const PAGE_SIZE = 50;
/** The pages before this one that the address names. */
const MAX_PREVIOUS_PAGES = 50;
const REFRESH_MILLISECONDS = 5000;

type OpenDialog =
  | { kind: "create" }
  | { kind: "edit" | "rotate" | "revoke"; apiKey: ShownKey }
  | { kind: "secret"; made: MadeKey; title: string };

export default function KeysPage() {
  return useIsAdmin() ? <AllKeys /> : <OwnKey />;
}

function AllKeys() {
  const [search, setSearch] = useQueryParameter("search");
  const [revoked, setRevoked] = useQueryParameter("revoked", "show");
  const [after, setAfter] = useQueryParameter("after");
  // The API has no parameter for the page before another one.
  const [previous, setPrevious] = useQueryParameter("previous");
  const previousPages = previous.split(",").slice(1);
  const openPage = (start: string, pagesBefore: string[]): void => {
    setPrevious(pagesBefore.slice(-MAX_PREVIOUS_PAGES).map((page) => `,${page}`).join(""));
    setAfter(start);
  };
  const [dialog, setDialog] = useState<OpenDialog | null>(null);
  const { data, error, isLoading, reload } = useData(async (signal) => {
    const query = { search, after, limit: PAGE_SIZE, revoked: revoked === "show" ? undefined : "false" };
    const [keys, limits] = await Promise.all([
      get("/v1/admin/keys", query, signal), get("/v1/admin/limits", query, signal),
    ]);
    return { ...keys, uses: new Map(limits.data.map((use) => [use.id, use])), search, after, revoked };
  }, [search, after, revoked], REFRESH_MILLISECONDS);
  // While the next keys load, those of another filter or page are shown. The next page must not start after their last key.
  const isCurrent = data?.search === search && data.after === after && data.revoked === revoked;
  const close = (): void => setDialog(null);
  const finish = (): void => {
    close();
    reload();
  };

  return (
    <>
      <div class="toolbar">
        <label class="field">
          Search
          <input
            type="search" placeholder="Name, id or tag" value={search}
            onInput={(event) => { openPage("", []); setSearch(event.currentTarget.value); }}
          />
        </label>
        <label class="row checkbox">
          <input
            type="checkbox" checked={revoked === "show"}
            onChange={(event) => { openPage("", []); setRevoked(event.currentTarget.checked ? "show" : "hide"); }}
          />
          Show revoked keys
        </label>
        <span class="spacer" />
        <button type="button" class="primary" onClick={() => setDialog({ kind: "create" })}>Create key</button>
      </div>
      {error && <ErrorNotice error={error} onRetry={reload} />}
      {!data && isLoading && <Loading label="Loading keys…" />}
      {data && <KeyList keys={data.data} uses={data.uses} isFiltered={search !== "" || after !== "" || revoked !== "show"} onOpen={setDialog} />}
      {data && (data.has_more || after !== "") && (
        <div class="row pager">
          <button type="button" disabled={after === ""} onClick={() => openPage("", [])}>First page</button>
          <button
            type="button" disabled={previousPages.length === 0}
            onClick={() => openPage(previousPages.at(-1) ?? "", previousPages.slice(0, -1))}
          >
            Previous page
          </button>
          <button
            type="button" disabled={!data.has_more || !isCurrent}
            onClick={() => openPage(data.data.at(-1)?.id ?? "", [...previousPages, after])}
          >
            Next page
          </button>
        </div>
      )}
      {data && data.configured.length > 0 && <ConfiguredKeys keys={data.configured} />}
      {dialog?.kind === "create" && (
        <KeyDialog onClose={close} onSaved={(made) => {
          setDialog("key" in made ? { kind: "secret", made, title: "Key created" } : null);
          reload();
        }} />
      )}
      {dialog?.kind === "edit" && <KeyDialog apiKey={dialog.apiKey} onClose={close} onSaved={finish} />}
      {dialog?.kind === "rotate" && (
        <RotateDialog apiKey={dialog.apiKey} onClose={close} onRotated={(made) => {
          setDialog({ kind: "secret", made, title: "New secret" });
          reload();
        }} />
      )}
      {dialog?.kind === "revoke" && <RevokeDialog apiKey={dialog.apiKey} onClose={close} onRevoked={finish} />}
      {dialog?.kind === "secret" && <SecretDialog made={dialog.made} title={dialog.title} onClose={close} />}
    </>
  );
}

function KeyList(
  { keys, uses, isFiltered, onOpen }: {
    keys: ShownKey[]; uses: Map<string, KeyUse>; isFiltered: boolean; onOpen: (dialog: OpenDialog) => void;
  },
) {
  if (!keys.length) {
    return isFiltered
      ? <EmptyNotice title="No key matches"><p>Search by another name, id or tag, show revoked keys, or go to the first page.</p></EmptyNotice>
      : (
        <EmptyNotice title="No key has been created yet">
          <p>Create a key for each program or person.</p>
        </EmptyNotice>
      );
  }
  return (
    <ul class="item-list" aria-label="Keys">
      {keys.map((apiKey) => (
        <KeyCard
          key={apiKey.id} apiKey={apiKey} use={uses.get(apiKey.id) ?? null}
          onAction={(kind) => onOpen({ kind, apiKey })}
        />
      ))}
    </ul>
  );
}

/** The keys of the gateway's environment. Only their variable changes them. */
function ConfiguredKeys({ keys }: { keys: ConfiguredKey[] }) {
  return (
    <section class="configured-keys" aria-labelledby="configured-title">
      <h2 id="configured-title">Keys of the environment</h2>
      <p class="hint">
        The variable <code>SVC_API_KEYS</code> of the gateway sets them, and <code>svc up</code> adds the one in{" "}
        <code>api_key</code> of its folder. They have no budget and no limits of their own, and change only with a restart.
      </p>
      <ul class="item-list" aria-label="Keys of the environment">
        {keys.map(({ id, name, scopes }) => (
          <li key={id} class="card">
            <dl class="facts">
              <div><dt>Name</dt><dd>{name}</dd></div>
              <div><dt>Id</dt><dd><code>{id}</code></dd></div>
              <div><dt>Scopes</dt><dd>{scopes.join(", ")}</dd></div>
              <div><dt>Use</dt><dd><KeyUseLinks id={id} name={name} /></dd></div>
            </dl>
          </li>
        ))}
      </ul>
    </section>
  );
}
