/** The health of providers and circuit breakers as words and colors. */
import type { ModelState, ProviderState } from "../../../build/schema";

const DEGRADED_ERROR_RATE = 0.1;

export function HealthBadge({ provider }: { provider: ProviderState }) {
  const { text, tone } = describeHealth(provider);
  return <span class={`badge ${tone}`}>{text}</span>;
}

/** Whether so many of the last attempts failed that the provider counts as degraded. */
export function hasManyErrors(provider: ProviderState): boolean {
  return (provider.recent.error_rate ?? 0) > DEGRADED_ERROR_RATE;
}

function describeHealth(provider: ProviderState): { text: string; tone: string } {
  const broken = provider.models.filter((model) => model.breaker !== "closed");
  if (provider.models.length > 0 && provider.models.every((model) => model.breaker === "open")) {
    return { text: "Down", tone: "bad" };
  }
  if (broken.length > 0 || hasManyErrors(provider)) return { text: "Degraded", tone: "warning" };
  return provider.recent.attempts > 0 ? { text: "Healthy", tone: "good" } : { text: "No recent requests", tone: "" };
}

const BREAKERS = {
  "closed": { tone: "good", meaning: "Requests go to this model." },
  "half-open": { tone: "warning", meaning: "One request tries whether the model works again." },
  "open": { tone: "bad", meaning: "The model failed repeatedly. Requests go to other backends until it is tried again." },
};

export function BreakerBadge({ state }: { state: ModelState["breaker"] }) {
  return <span class={`badge ${BREAKERS[state].tone}`} title={BREAKERS[state].meaning}>{state}</span>;
}

export function formatShare(share: number | null): string {
  return share === null ? "–" : share.toLocaleString(undefined, { style: "percent", maximumFractionDigits: 1 });
}
