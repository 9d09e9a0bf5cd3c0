/** The page for an ordinary key, which sees itself alone. */
import type { Limits, ShownKey } from "../../../build/schema";
import { ApiError, requestJson } from "../../api/client";
import { useData } from "../../components/data";
import { AdminOnly, ErrorNotice } from "../../components/notices";
import { useSession } from "../../session";
import { KeyCard } from "./card";

const REFRESH_MILLISECONDS = 5000;

export function OwnKey() {
  const session = useSession();
  const { data, error, reload } = useData(
    (signal) => loadOwnKey(session.key_id, signal), [session.key_id], REFRESH_MILLISECONDS,
  );
  return (
    <div class="stack">
      <h2 class="visually-hidden">Your key</h2>
      {error && <ErrorNotice error={error} onRetry={reload} />}
      {data?.apiKey
        ? <ul class="item-list" aria-label="Your key"><KeyCard apiKey={data.apiKey} use={data.use} /></ul>
        : <SessionKey hasNoLimits={data !== null} />}
      <AdminOnly what="Creating and changing keys is for administrators." />
    </div>
  );
}

async function loadOwnKey(id: string, signal: AbortSignal) {
  try {
    const [apiKey, limits] = await Promise.all([
      requestJson<ShownKey>(`/v1/admin/keys/${encodeURIComponent(id)}`, { signal }),
      requestJson<Limits>("/v1/admin/limits", { query: { key: id }, signal }),
    ]);
    return { apiKey, use: limits.data[0] ?? null };
  } catch (error) {
    // A key of the environment is not in the database.
    if (error instanceof ApiError && error.status === 404) return { apiKey: null, use: null };
    throw error;
  }
}

function SessionKey({ hasNoLimits }: { hasNoLimits: boolean }) {
  const session = useSession();
  return (
    <section class="card">
      <dl class="facts">
        <div><dt>Name</dt><dd>{session.key_name}</dd></div>
        <div><dt>Id</dt><dd><code>{session.key_id}</code></dd></div>
        <div><dt>Scopes</dt><dd>{session.scopes.join(", ")}</dd></div>
        <div><dt>Models</dt><dd>{session.models ? session.models.join(", ") : "All"}</dd></div>
      </dl>
      {hasNoLimits && (
        <p class="hint">The key is not in the database, such as one in <code>SVC_API_KEYS</code>. It has no budget.</p>
      )}
    </section>
  );
}
