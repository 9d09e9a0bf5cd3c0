"""The states of providers and models, as `/v1/admin/providers` shows them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec

from svc.gateway.accounting.cost import PriceTable
from svc.gateway.observability.recent_attempts import (
    OUTCOME_ERROR,
    OUTCOME_OK,
    WINDOW_SECONDS,
    is_failure,
    latency_quantile_ms,
)
from svc.gateway.observability.series import AttemptSeries, LastError, MetricsSnapshot
from svc.gateway.proxy.provider_test import TEST_REQUESTS
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.circuit_breaker import worst_state
from svc.gateway.routing.unconfigured_providers import UnconfiguredProvider
from svc.resilience import BreakerState


class RecentUse(msgspec.Struct, frozen=True, kw_only=True):
    """The attempts of about the last five minutes, over all workers of this machine."""

    window_seconds: int = int(WINDOW_SECONDS)
    """Seconds of the window."""
    attempts: int
    """The attempts that ended, without cancelled ones."""
    errors: int
    """Those that failed. Requests that are invalid (`invalid_request`) are the caller's mistake, and do not count."""
    cancelled: int
    """Attempts that the gateway cancelled, for example because the client disconnected."""
    error_rate: float | None
    """The share of attempts that failed, from 0 to 1. Null without attempts."""
    latency_p50_ms: float | None
    """The median duration of successful attempts in milliseconds, estimated. Null without any."""
    latency_p99_ms: float | None
    """The 99th percentile in the same way."""


class LastProviderError(msgspec.Struct, frozen=True, kw_only=True):
    """The last failed attempt since the gateway started."""

    code: str
    """The code of the error."""
    time: str
    """ISO 8601, UTC."""


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """A model at a provider."""

    id: str
    """The id of the model."""
    kind: str
    """The purpose of the model, such as `chat`."""
    context_window: int
    """Tokens of prompt and response together."""
    max_output_tokens: int | None
    """Maximum tokens of a response. Null means unknown."""
    input_price: float | None
    """USD per million input tokens."""
    output_price: float | None
    """USD per million output tokens."""
    breaker: BreakerState
    """The worst state of the circuit breaker over all workers and accounts."""
    accounts: dict[str, BreakerState]
    """The state of the circuit breaker of each account, by its number."""
    recent: RecentUse
    """The attempts of the last minutes."""
    last_error: LastProviderError | None
    """The last error. Null if there was none."""
    testable: bool
    """Whether `POST /v1/admin/providers/{name}/test` can test it."""


class ProviderState(msgspec.Struct, frozen=True, kw_only=True):
    """A provider, without its key."""

    name: str
    """The name of the provider."""
    dialect: str
    """Its dialect."""
    base_url: str
    """Its address."""
    accounts: int
    """The number of its accounts."""
    models: list[ModelState]
    """Its models."""
    configured: bool
    """Whether it has a key, or needs none."""
    missing_variables: list[str]
    """The environment variables of which one would give it a key. Empty if it is configured."""
    recent: RecentUse
    """The attempts of the last minutes at all of its models."""
    last_error: LastProviderError | None
    """The last error of its models. Null if there was none."""


class ProviderList(msgspec.Struct, frozen=True, kw_only=True):
    """The providers: those with a key first."""

    object: str = "list"
    """Always `list`."""
    data: list[ProviderState]
    """The providers."""


def show_provider(backends: list[Backend], metrics: MetricsSnapshot, prices: PriceTable) -> ProviderState:
    """Return the state of a provider that has a key."""
    provider = backends[0].provider
    return ProviderState(
        name=provider.name,
        dialect=provider.dialect.name,
        base_url=_without_credentials(provider.address.geturl()),
        accounts=max(1, len(backends[0].account_backends)),
        models=[_show_model(backend, metrics, prices) for backend in backends],
        configured=True,
        missing_variables=[],
        recent=_recent_use(series for series in metrics.recent if series.labels[0] == provider.name),
        last_error=_last_error(metrics, provider.name),
    )


def _show_model(backend: Backend, metrics: MetricsSnapshot, prices: PriceTable) -> ModelState:
    model, price = backend.model, prices.get(backend.provider_name, backend.model_id)
    name, states = f"{backend.provider_name}/{model.id}", metrics.breakers
    account_states: dict[str, BreakerState] = {
        str(account.account_number): states.get(f"{name}#{account.account_number}", "closed")
        for account in backend.account_backends
    }
    labels = (backend.provider_name, model.id)
    return ModelState(
        id=model.id,
        kind=backend.kind,
        context_window=model.context_window,
        max_output_tokens=model.max_output_tokens,
        input_price=price.input if price else None,
        output_price=price.output if price else None,
        breaker=worst_state([states.get(name, "closed"), *account_states.values()]),
        accounts=account_states,
        recent=_recent_use(series for series in metrics.recent if series.labels[:2] == labels),
        last_error=_show_error(metrics.last_errors.get(name)),
        testable=backend.kind in TEST_REQUESTS,
    )


def show_unconfigured(provider: UnconfiguredProvider, metrics: MetricsSnapshot) -> ProviderState:
    """Return the state of a provider without a key."""
    unused = _recent_use(())
    models = [
        ModelState(
            id=model.id,
            kind=model.kind,
            context_window=model.context_window,
            max_output_tokens=model.max_output_tokens,
            input_price=model.input_price,
            output_price=model.output_price,
            breaker="closed",
            accounts={},
            recent=unused,
            last_error=None,
            testable=False,
        )
        for model in provider.models
    ]
    return ProviderState(
        name=provider.name,
        dialect=provider.dialect,
        base_url=_without_credentials(provider.base_url),
        accounts=0,
        models=models,
        configured=False,
        missing_variables=list(provider.variables),
        recent=unused,
        last_error=_last_error(metrics, provider.name),
    )


def _recent_use(series: Iterable[AttemptSeries]) -> RecentUse:
    attempts = errors = cancelled = 0
    succeeded = AttemptSeries(("", "", "", ""))
    for each in series:
        outcome = each.labels[2]
        if outcome in (OUTCOME_OK, OUTCOME_ERROR):
            attempts += each.attempts
        else:
            cancelled += each.attempts
        if is_failure(each.labels):
            errors += each.attempts
        if outcome == OUTCOME_OK:
            succeeded.merge(each)
    return RecentUse(
        attempts=attempts,
        errors=errors,
        cancelled=cancelled,
        error_rate=round(errors / attempts, 6) if attempts else None,
        latency_p50_ms=latency_quantile_ms(succeeded.latency, 0.5),
        latency_p99_ms=latency_quantile_ms(succeeded.latency, 0.99),
    )


def _last_error(metrics: MetricsSnapshot, provider: str) -> LastProviderError | None:
    errors = [error for name, error in metrics.last_errors.items() if name.startswith(f"{provider}/")]
    return _show_error(max(errors, key=lambda error: error.time, default=None))


def _show_error(error: LastError | None) -> LastProviderError | None:
    if error is None:
        return None
    return LastProviderError(
        code=error.code, time=datetime.fromtimestamp(error.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )


def _without_credentials(url: str) -> str:
    """Return a URL without user name and password, or empty text for an invalid one."""
    try:
        address = urlsplit(url)
    except ValueError:
        return ""
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
