"""Orders the providers of a model by `routing.strategy`. No I/O. Times are loop times in seconds.

order       the order of the configuration
weighted    random, in proportion to `routing.weights`
least_busy  fewest requests in flight in this process, then lowest average latency
cheapest    lowest price for the estimated tokens of the request

The providers of a fallback model come after those of the requested model, and are ordered by their own strategy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Final

from svc.dialects.base import RequestBody
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.token_estimate import ASSUMED_OUTPUT_TOKENS, estimate_input_tokens
from svc.gateway.routing.backends import Backend
from svc.settings import RoutingSettings, RoutingStrategy
from svc.wire.usage import TokenUsage

NEW_LATENCY_WEIGHT: Final = 0.2
"""The weight of one response in the moving average of the latency."""
LATENCY_MAX_AGE_SECONDS: Final = 10.0
"""Seconds after which an average is outdated. The provider then counts as fast, so that a request measures it again."""


class BackendLoad:
    """The requests in flight and the average latency of a model at a provider, over all of its accounts."""

    __slots__ = ("_average_seconds", "_measured_at", "in_flight")

    def __init__(self) -> None:
        self.in_flight = 0
        self._average_seconds = [0.0, 0.0]
        """The averages of responses, and of first bytes of streams."""
        self._measured_at = [-math.inf, -math.inf]

    def record_latency(self, seconds: float, now: float, *, stream: bool) -> None:
        """Add a response to the average: the seconds to its last byte, or to the first byte of a stream."""
        average: float = self._average_seconds[stream]
        if now - self._measured_at[stream] > LATENCY_MAX_AGE_SECONDS:
            average = seconds
        self._average_seconds[stream] = average + NEW_LATENCY_WEIGHT * (seconds - average)
        self._measured_at[stream] = now

    def average_latency(self, now: float, *, stream: bool) -> float:
        """Return the average latency in seconds, or 0 if it is unknown or outdated."""
        return 0.0 if now - self._measured_at[stream] > LATENCY_MAX_AGE_SECONDS else self._average_seconds[stream]


def unknown_cost(backend: Backend, usage: TokenUsage) -> float | None:
    """Return None: the price of every backend is unknown."""
    return None


class RoutingStrategies:
    """The strategy of each model, and the load of its backends. A reload changes the former and keeps the latter."""

    def __init__(self, routing: RoutingSettings) -> None:
        self.estimate_cost: Callable[[Backend, TokenUsage], float | None] = unknown_cost
        """Returns the cost in USD of a usage at a backend, or None if its price is unknown."""
        self._loads: dict[tuple[str, str], BackendLoad] = {}
        self._strategies: dict[str, RoutingStrategy] = {}
        self._weights: dict[str, dict[str, float]] = {}
        self._default: RoutingStrategy = "order"
        self.is_enabled = False
        """Whether any model has another strategy than `order`."""
        self.tracks_load = False
        """Whether any model has the strategy `least_busy`."""
        self.configure(routing)

    def configure(self, routing: RoutingSettings) -> None:
        """Apply changed settings."""
        self._default, self._strategies, self._weights = routing.strategy, routing.strategies, routing.weights
        strategies = {routing.strategy, *routing.strategies.values()}
        self.is_enabled = strategies != {"order"}
        self.tracks_load = "least_busy" in strategies

    def load_of(self, backend: Backend) -> BackendLoad:
        """Return the load of a backend, which all accounts of its provider share."""
        backend_key = backend.provider_name, backend.model_id
        load = self._loads.get(backend_key)
        if load is None:
            load = self._loads[backend_key] = BackendLoad()
        return load

    def order(
        self, backends: tuple[Backend, ...], body: RequestBody, routing_info: RoutingInfo, now: float
    ) -> tuple[Backend, ...]:
        """Return the backends of a request in the order of its attempts. `backends` has those of a model together."""
        ordered: list[Backend] = []
        start = 0
        while start < len(backends):
            model_id = backends[start].model_id
            end = start + 1
            while end < len(backends) and backends[end].model_id == model_id:
                end += 1
            group = backends[start:end]
            ordered += group if len(group) == 1 else self._order_providers(model_id, group, body, routing_info, now)
            start = end
        return tuple(ordered)

    def _order_providers(
        self, model_id: str, backends: Sequence[Backend], body: RequestBody, routing_info: RoutingInfo, now: float
    ) -> Sequence[Backend]:
        strategy = self._strategies.get(model_id, self._default)
        if strategy == "weighted":
            weights = self._weights.get(model_id, {})
            return _sort(backends, [_random_rank(weights.get(backend.provider_name, 1.0)) for backend in backends])
        if strategy == "least_busy":
            loads = [self.load_of(backend) for backend in backends]
            stream = routing_info.stream
            return _sort(backends, [(load.in_flight, load.average_latency(now, stream=stream)) for load in loads])
        if strategy == "cheapest":
            usage = _estimate_usage(body, routing_info)
            costs = [self.estimate_cost(backend, usage) for backend in backends]
            return _sort(backends, [math.inf if cost is None else cost for cost in costs])
        return backends


def _random_rank(weight: float) -> float:
    """Return a random rank. The lowest of several belongs to each with a probability in proportion to its weight.

    Weighted sampling without replacement: Efraimidis and Spirakis, 2006, https://doi.org/10.1016/j.ipl.2005.11.003.
    """
    return random.expovariate(weight) if weight else math.inf


def _estimate_usage(body: RequestBody, routing_info: RoutingInfo) -> TokenUsage:
    prompt = estimate_input_tokens(body, routing_info)
    if not routing_info.has_completion:
        return TokenUsage(prompt)
    return TokenUsage(prompt, (routing_info.max_tokens or ASSUMED_OUTPUT_TOKENS) * routing_info.choice_count)


def _sort(backends: Sequence[Backend], ranks: Sequence[float] | Sequence[tuple[int, float]]) -> list[Backend]:
    """Return the backends by rank. Backends with the same rank keep their order."""
    return [backends[index] for index in sorted(range(len(backends)), key=ranks.__getitem__)]
