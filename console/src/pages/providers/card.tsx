/** One provider: its health, its models, and tests of them. */
import { useState } from "preact/hooks";
import type { ProviderState, ProviderTestResult } from "../../../build/schema";
import { ApiError, requestJson } from "../../api/client";
import { BusyButton } from "../../components/busy-button";
import { formatCount, formatMilliseconds, formatTime } from "../../components/format";
import { ErrorNotice } from "../../components/notices";
import { HealthBadge, formatShare } from "./health";
import { ModelTable } from "./models";
import { TestResult } from "./test-result";

/** The address of the models that the gateway itself runs. Each has a port of its own. */
const THIS_MACHINE = "http://127.0.0.1/v1";
const MODELS_OPEN_BY_DEFAULT = 12;

export function ProviderCard({ provider, onTested }: { provider: ProviderState; onTested: () => void }) {
  const [runningModel, setRunningModel] = useState<string | null>(null);
  const [result, setResult] = useState<ProviderTestResult | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const { recent } = provider;
  const firstTestable = provider.models.find((model) => model.testable)?.id;

  const test = async (model: string): Promise<void> => {
    setRunningModel(model);
    setResult(null);
    setError(null);
    try {
      setResult(await requestJson<ProviderTestResult>(`/v1/admin/providers/${encodeURIComponent(provider.name)}/test`, {
        method: "POST", json: { model },
      }));
      onTested();
    } catch (caught) {
      if (!(caught instanceof ApiError)) throw caught;
      setError(caught);
    }
    setRunningModel(null);
  };

  return (
    <li class="card stack">
      <div class="provider-head">
        <div>
          <div class="row">
            <h2 class="provider-name">{provider.name}</h2>
            <HealthBadge provider={provider} />
          </div>
          <p class="hint provider-address">{provider.base_url === THIS_MACHINE ? "this machine" : <code>{provider.base_url}</code>} · {provider.dialect}{accountText(provider)}</p>
        </div>
        <dl class="figures">
          <div><dt>Requests</dt><dd>{formatCount(recent.attempts)}</dd></div>
          <div><dt>Error rate</dt><dd>{formatShare(recent.error_rate)}</dd></div>
          <div><dt>p50</dt><dd>{formatMilliseconds(recent.latency_p50_ms)}</dd></div>
          <div><dt>p99</dt><dd>{formatMilliseconds(recent.latency_p99_ms)}</dd></div>
        </dl>
        {firstTestable && (
          <BusyButton
            type="button" class="primary" isBusy={runningModel !== null}
            onClick={() => void test(firstTestable)}
          >
            {runningModel === null ? "Test now" : "Testing…"}
            <span class="visually-hidden"> {provider.name}</span>
          </BusyButton>
        )}
      </div>
      {provider.last_error && (
        <p class="hint">
          {recent.error_rate === 0 && "No error in the last five minutes. "}
          Last error: <code>{provider.last_error.code}</code>, {formatTime(provider.last_error.time)}
        </p>
      )}
      <div aria-live="polite">
        {runningModel !== null && <p class="hint">Sending a short request to {runningModel}…</p>}
        {result && <TestResult result={result} />}
      </div>
      {error && <ErrorNotice error={error} />}
      <details open={provider.models.length <= MODELS_OPEN_BY_DEFAULT}>
        <summary>{provider.models.length} {provider.models.length === 1 ? "model" : "models"}</summary>
        <ModelTable provider={provider} isTesting={runningModel !== null} onTest={(model) => void test(model)} />
      </details>
    </li>
  );
}

function accountText(provider: ProviderState): string {
  return provider.accounts > 1 ? ` · ${provider.accounts} accounts` : "";
}
