/** Why a request was refused, failed or was slow, in the sentences of the server. */
import type { RequestExplanation } from "../../../build/schema";
import { requestJson } from "../../api/client";
import { CodeBlock } from "../../components/copy";
import { type Loaded, useData } from "../../components/data";
import { formatCount, formatMilliseconds } from "../../components/format";
import { ErrorNotice, Loading } from "../../components/notices";
import { TableScroll } from "../../components/table-scroll";

export function useExplanation(id: string): Loaded<RequestExplanation> {
  return useData((signal) => requestJson<RequestExplanation>(`/v1/requests/${encodeURIComponent(id)}/explanation`, { signal }), [id]);
}

export function Explanation({ of: { data, error, reload } }: { of: Loaded<RequestExplanation> }) {
  if (error) return <ErrorNotice error={error} onRetry={reload} />;
  if (!data) return <Loading />;
  return (
    <>
      <div class={`notice ${data.status === "ok" ? "" : "error"}`}>
        <p>{data.why}</p>
        {data.action && <p class="hint">{data.action}</p>}
      </div>
      {data.command && <CodeBlock code={data.command} label="Command that changes the limit" />}
      {data.consumers.length > 0 && <Consumers explanation={data} />}
      {data.timing && <Timing timing={data.timing} />}
    </>
  );
}

function Consumers({ explanation }: { explanation: RequestExplanation }) {
  return (
    <section>
      <h3>What used the limit</h3>
      <TableScroll label="What used the limit">
        <table>
          <thead><tr><th>Model</th><th class="number">Requests</th><th class="number">Running</th><th class="number">Tokens</th></tr></thead>
          <tbody>
            {explanation.consumers.map((each) => (
              <tr key={each.model}>
                <td>{each.model}</td>
                <td class="number">{formatCount(each.requests)}</td>
                <td class="number">{formatCount(each.running)}</td>
                <td class="number">{formatCount(each.tokens)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </TableScroll>
    </section>
  );
}

const PHASES: Record<string, string> = {
  before_attempts: "Before and between attempts",
  earlier_attempts: "Earlier attempts",
  first_byte: "Until the first byte",
  output: "Output",
};

function Timing({ timing }: { timing: NonNullable<RequestExplanation["timing"]> }) {
  const usual = timing.provider_p50;
  const pace = (value: number | null | undefined): string => (value === null || value === undefined ? "unknown" : String(value));
  return (
    <section>
      <h3>Time</h3>
      <dl class="request-facts">
        {timing.phases.map((phase) => <div key={phase.name}><dt>{PHASES[phase.name] ?? phase.name}</dt><dd>{formatMilliseconds(phase.ms)}</dd></div>)}
        <div><dt>Tokens per second</dt><dd>{pace(timing.tokens_per_second)}</dd></div>
        <div>
          <dt>Median at the provider in that hour</dt>
          <dd>{usual ? `${formatMilliseconds(usual.latency_ms)}, first byte after ${formatMilliseconds(usual.ttfb_ms)}, ${pace(usual.tokens_per_second)} tokens per second` : "too few other requests"}</dd>
        </div>
      </dl>
    </section>
  );
}
