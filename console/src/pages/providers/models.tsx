/** The models of a provider, each with its circuit breaker and its last minutes. */
import type { ModelState, ProviderState } from "../../../build/schema";
import { BusyButton } from "../../components/busy-button";
import { formatCount, formatMilliseconds, formatShortTime, formatTime } from "../../components/format";
import { TableScroll } from "../../components/table-scroll";
import { BreakerBadge, formatShare } from "./health";

export function ModelTable(
  { provider, isTesting, onTest }: { provider: ProviderState; isTesting: boolean; onTest: (model: string) => void },
) {
  return (
    <TableScroll label={`Models of ${provider.name}`}>
      <table class="model-table">
        <thead>
          <tr>
            <th scope="col">Model</th><th scope="col">Breaker</th><th scope="col" class="number">Requests</th>
            <th scope="col" class="number">Error rate</th><th scope="col" class="number">p50</th>
            <th scope="col" class="number">p99</th><th scope="col">Last error</th>
            <th scope="col"><span class="visually-hidden">Actions</span></th>
          </tr>
        </thead>
        <tbody>
          {provider.models.map((model) => (
            <tr key={model.id}>
              <th scope="row">{model.id}</th>
              <td><Breakers model={model} /></td>
              <td class="number">{formatCount(model.recent.attempts)}</td>
              <td class="number">{formatShare(model.recent.error_rate)}</td>
              <td class="number">{formatMilliseconds(model.recent.latency_p50_ms)}</td>
              <td class="number">{formatMilliseconds(model.recent.latency_p99_ms)}</td>
              <td>{model.last_error ? <><code>{model.last_error.code}</code> <time dateTime={model.last_error.time} title={formatTime(model.last_error.time)}>{formatShortTime(model.last_error.time)}</time></> : "–"}</td>
              <td>
                {model.testable && (
                  <BusyButton type="button" isBusy={isTesting} aria-label={`Test ${model.id}`} onClick={() => onTest(model.id)}>
                    Test
                  </BusyButton>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </TableScroll>
  );
}

function Breakers({ model }: { model: ModelState }) {
  const accounts = Object.entries(model.accounts);
  if (accounts.length < 2) return <BreakerBadge state={model.breaker} />;
  return (
    <span class="row">
      {accounts.map(([number, state]) => <span key={number}>{number}: <BreakerBadge state={state} /></span>)}
    </span>
  );
}
