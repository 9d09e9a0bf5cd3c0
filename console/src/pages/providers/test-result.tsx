/** The result of a test, and what to do after a failure. */
import type { ProviderTestResult } from "../../../build/schema";
import { formatMilliseconds, formatUsd } from "../../components/format";
import { pagePath } from "../../router";

export function TestResult({ result }: { result: ProviderTestResult }) {
  if (result.ok) {
    return (
      <div class="notice test-ok">
        <p><strong>{result.model} works.</strong> It responded in {formatMilliseconds(result.latency_ms)}.</p>
        <p class="hint">The test cost {formatUsd(result.cost_usd)}. Request <RequestLink id={result.request_id} />.</p>
      </div>
    );
  }
  return (
    <div class="notice error">
      <p>{result.model} failed after {formatMilliseconds(result.latency_ms)}: {result.message}</p>
      <p>{adviceFor(result)}</p>
      <p class="hint">
        {result.http_status !== null && `Status ${result.http_status}. `}Code {result.code}. Request <RequestLink id={result.request_id} />.
      </p>
    </div>
  );
}

function RequestLink({ id }: { id: string }) {
  return <a href={`${pagePath("Requests")}?request=${encodeURIComponent(id)}`}>{id}</a>;
}

function adviceFor({ http_status: status }: ProviderTestResult): string {
  if (status === null) return "The provider did not respond. Check its address, the network, and the proxy of the gateway.";
  if (status === 401 || status === 403) return "The provider refuses the API key. Replace the key in the gateway's environment, and restart it.";
  if (status === 404) return "The provider does not have this model. Correct the model or the address in svc.toml.";
  if (status === 402 || status === 429) return "The account has no quota left. Wait, or raise the limit at the provider.";
  if (status >= 500) return "The provider has a fault. Requests use a fallback where one is configured. Test again later.";
  return "The provider refuses the request. The message says why.";
}
