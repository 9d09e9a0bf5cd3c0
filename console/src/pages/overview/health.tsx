/** The degraded components, each with advice. An ordinary key does not see them. */
import type { ProviderList } from "../../../build/schema";
import type { Overview } from "../../../build/schema";
import { pagePath } from "../../router";
import { formatShare, hasManyErrors } from "../providers/health";

export function Health({ overview, providers }: { overview: Overview; providers: ProviderList | null }) {
  if (overview.degraded === null) {
    return <p class="hint">The figures are those of your key. A key with the scope <code>admin</code> also sees the health of the gateway.</p>;
  }
  const broken = (providers?.data ?? []).flatMap(
    (provider) => provider.models.filter((model) => model.breaker !== "closed").map((model) => ({ provider: provider.name, model })),
  );
  const isBroken = new Set(broken.map(({ provider }) => provider));
  const failing = (providers?.data ?? []).filter((provider) => hasManyErrors(provider) && !isBroken.has(provider.name));
  if (!overview.degraded.length && !broken.length && !failing.length) {
    return <div class="row"><span class="badge good">Healthy</span> <span class="hint">All components work.</span></div>;
  }
  return (
    <section class="notice warning" aria-label="Degraded">
      <p><strong>Some parts are degraded</strong></p>
      <ul>
        {overview.degraded.map(({ name, advice }) => <li key={name}><code>{name}</code>: {advice}</li>)}
        {broken.map(({ provider, model }) => (
          <li key={`${provider} ${model.id}`}>
            <code>{provider}</code> failed repeatedly with <code>{model.id}</code>, so its circuit breaker is {model.breaker.replace("_", " ")}.
            Other backends serve the model if there are any. <a href={pagePath("Providers")}>Test the provider</a>
          </li>
        ))}
        {failing.map(({ name, recent, last_error: lastError }) => (
          <li key={name}>
            <code>{name}</code> failed {formatShare(recent.error_rate)} of {recent.attempts} attempts in the last five minutes
            {lastError && <>, last with <code>{lastError.code}</code></>}.{" "}
            <a href={`${pagePath("Providers")}?search=${encodeURIComponent(name)}`}>Test the provider</a>, or see{" "}
            <a href={`${pagePath("Requests")}?status=error&provider=${encodeURIComponent(name)}`}>its failed requests</a>.
          </li>
        ))}
      </ul>
    </section>
  );
}
