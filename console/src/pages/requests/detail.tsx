/** One request: why it ended so, its attempts, tokens and cost. It has an address of its own. */
import type { ComponentChildren } from "preact";
import type { ExplainedEntry, RefusedRequest } from "../../../build/schema";
import { requestJson } from "../../api/client";
import { CodeBlock, CopyButton } from "../../components/copy";
import { useData } from "../../components/data";
import { Dialog } from "../../components/dialog";
import { TIME_ZONE, formatCount, formatExactUsd, formatMilliseconds, formatTime } from "../../components/format";
import { ErrorNotice, Loading } from "../../components/notices";
import { formatTag } from "../../components/tag";
import { pagePath } from "../../router";
import { useIsAdmin } from "../../session";
import { Attempts } from "./attempts";
import { Explanation, useExplanation } from "./explanation";
import { StatusBadge } from "./status";

const TOKEN_FIELDS: [keyof ExplainedEntry, string][] = [
  ["prompt_tokens", "Prompt"],
  ["cached_tokens", "of these, read from the provider's cache"],
  ["cache_write_tokens", "of these, written to the provider's cache"],
  ["prompt_audio_tokens", "of these, audio"],
  ["prompt_image_tokens", "of these, images"],
  ["completion_tokens", "Completion"],
  ["reasoning_tokens", "of these, reasoning"],
  ["completion_audio_tokens", "of these, audio"],
  ["completion_image_tokens", "of these, images"],
];

export function RequestDetail({ id, onClose }: { id: string; onClose: () => void }) {
  const { data, error, reload } = useData(
    (signal) => requestJson<ExplainedEntry | RefusedRequest>(`/v1/requests/${encodeURIComponent(id)}`, { signal }), [id],
  );
  return (
    <Dialog title="Request" isDrawer onClose={onClose}>
      {error && (error.status === 404 ? <UnknownRequest id={id} onRetry={reload} /> : <ErrorNotice error={error} onRetry={reload} />)}
      {!data && !error && <Loading />}
      {data && (isRefused(data) ? <RefusedDetail refused={data} /> : <Detail entry={data} />)}
    </Dialog>
  );
}

function UnknownRequest({ id, onRetry }: { id: string; onRetry: () => void }) {
  const isAdmin = useIsAdmin();
  return (
    <div class="notice error" role="alert">
      <p>There is no request <code class="wrap">{id}</code> that you may see.</p>
      <ul class="hint">
        <li>A request appears here up to 2 seconds after its end, and a running one not yet.</li>
        {!isAdmin && <li>Your key sees only its own requests.</li>}
        <li>Only the machine that refused a request knows it, as long as it keeps its file.</li>
        <li>The id can be that of another gateway, or incomplete. The response has it in the header <code>x-request-id</code>.</li>
      </ul>
      <button type="button" onClick={onRetry}>Look again</button>
    </div>
  );
}

function isRefused(data: ExplainedEntry | RefusedRequest): data is RefusedRequest {
  return data.status === "refused";
}

function DetailHead({ entry }: { entry: { request_id: string; status: string; http_status: number } }) {
  return (
    <div class="row">
      <StatusBadge entry={entry} />
      <code class="wrap">{entry.request_id}</code>
      <CopyButton text={entry.request_id} label="Copy id" />
    </div>
  );
}

function RefusedDetail({ refused }: { refused: RefusedRequest }) {
  const explanation = useExplanation(refused.request_id);
  return (
    <div class="stack">
      <DetailHead entry={refused} />
      <Explanation of={explanation} />
      <p class="hint">Nothing was sent to a provider, so the request cost nothing, and the ledger has no entry.</p>
      <section>
        <h3>Facts</h3>
        <dl class="request-facts">
          <Fact label="Ended">{formatTime(refused.time)} ({TIME_ZONE})</Fact>
          <Fact label="Status">{refused.http_status}, <code>{refused.code}</code></Fact>
          {refused.limit && <Fact label="Limit"><code>{refused.limit}</code></Fact>}
          <Fact label="Endpoint"><code class="wrap">{refused.endpoint}</code></Fact>
          <Fact label="Model">{refused.model_asked ?? "not read"}</Fact>
          <Fact label="Key">{refused.key_id ? <KeyLink id={refused.key_id} name={refused.key_name} /> : "no valid key"}</Fact>
          <Tags tags={refused.tags} />
          <Fact label="Latency">{formatMilliseconds(refused.latency_ms)}</Fact>
          {refused.client_request_id && <Fact label="Client's id"><code class="wrap">{refused.client_request_id}</code></Fact>}
        </dl>
      </section>
      <section>
        <h3>The same on the command line</h3>
        <CodeBlock code={`svc why ${refused.request_id}`} label="Command" />
      </section>
    </div>
  );
}

function Detail({ entry }: { entry: ExplainedEntry }) {
  const explanation = useExplanation(entry.request_id);
  return (
    <div class="stack">
      <DetailHead entry={entry} />
      <Explanation of={explanation} />
      <section>
        <h3>Attempts</h3>
        <Attempts entry={entry} />
      </section>
      <section>
        <h3>Tokens and cost</h3>
        <Tokens entry={entry} />
      </section>
      <section>
        <h3>Facts</h3>
        <Facts entry={entry} />
      </section>
      <section>
        <h3>The same on the command line</h3>
        <CodeBlock code={`svc why ${entry.request_id}\nsvc usage --request ${entry.request_id}`} label="Command" />
      </section>
    </div>
  );
}

function Tokens({ entry }: { entry: ExplainedEntry }) {
  const rows = TOKEN_FIELDS.filter(([name], index) => index === 0 || name === "completion_tokens" || entry[name]);
  return (
    <dl class="request-facts">
      {rows.map(([name, label]) => (
        <Fact key={name} label={label}>{entry[name] === null ? "unknown" : formatCount(Number(entry[name]))}</Fact>
      ))}
      <Fact label="Cost">
        {describeCost(entry)}
        {entry.cost_formula && <><br /><code class="wrap">{entry.cost_formula}</code></>}
      </Fact>
      {(entry.cost_terms ?? []).map((term) => (
        <Fact key={term.name} label={`Cost of ${term.name}`}>
          {formatCount(term.count)} × {formatExactUsd(term.usd_per_million)} per million = {formatExactUsd(term.usd)}
        </Fact>
      ))}
      {entry.estimated && <Fact label="Note">The provider reported no usage. The counts are estimates of the gateway.</Fact>}
    </dl>
  );
}

function describeCost(entry: ExplainedEntry): string {
  if (entry.cost_usd !== null) return formatExactUsd(entry.cost_usd);
  // A failed request without usage: the gateway charges nothing to the key.
  if (entry.status === "error" && !entry.prompt_tokens && !entry.completion_tokens) return "none: the request failed without usage";
  return "unknown: the model has no price";
}

function Facts({ entry }: { entry: ExplainedEntry }) {
  const isOtherModel = entry.model_asked && entry.model_asked !== entry.model;
  return (
    <dl class="request-facts">
      <Fact label="Ended">{formatTime(entry.time)} ({TIME_ZONE})</Fact>
      <Fact label="Status">{entry.http_status}{entry.code && <>, <code>{entry.code}</code></>}</Fact>
      <Fact label="Endpoint"><code class="wrap">{entry.endpoint}</code></Fact>
      <Fact label="Model">{entry.model ?? "none"}{isOtherModel && `, requested as ${entry.model_asked ?? ""}`}</Fact>
      <Fact label="Provider">{entry.provider ?? "none"}</Fact>
      <Fact label="Key"><KeyLink id={entry.key_id} name={entry.key_name} /></Fact>
      {entry.ephemeral_id && <Fact label="Ephemeral key"><code class="wrap">{entry.ephemeral_id}</code></Fact>}
      <Tags tags={entry.tags} />
      <Fact label="Latency">{formatMilliseconds(entry.latency_ms)}</Fact>
      <Fact label="First byte after">{formatMilliseconds(entry.ttfb_ms)}</Fact>
      {entry.client_request_id && <Fact label="Client's id"><code class="wrap">{entry.client_request_id}</code></Fact>}
      {entry.upstream_request_id && <Fact label="Provider's id"><code class="wrap">{entry.upstream_request_id}</code></Fact>}
    </dl>
  );
}

function Tags({ tags }: { tags: Record<string, string> }) {
  const shown = Object.entries(tags);
  if (!shown.length) return null;
  return <Fact label="Tags">{shown.map(([name, value]) => <code key={name} class="wrap tag">{formatTag(name, value)}</code>)}</Fact>;
}

/** The page Keys finds keys by their ids. An ordinary key sees itself there. */
function KeyLink({ id, name }: { id: string; name: string | null }) {
  return <><a href={`${pagePath("Keys")}?search=${encodeURIComponent(id)}`}>{name ?? id}</a> <code class="wrap">{id}</code></>;
}

function Fact({ label, children }: { label: string; children: ComponentChildren }) {
  return <div><dt>{label}</dt><dd>{children}</dd></div>;
}
