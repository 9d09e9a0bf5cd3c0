"""What tokens cost. Prices come from configuration, else from the package genai-prices. No look at any clock.

That package takes 28 MB and a quarter of a second to load, so it is asked once, by `pricelist` in a process of its
own, for the models that are offered; a request costs a few multiplications. Until it has answered, the built-in models
have the prices of `prices.json`, so nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

import msgspec

from svc.gateway.accounting.price import Price
from svc.gateway.routing.backends import Backend
from svc.wire.usage import TokenUsage

NANOS_PER_DOLLAR: Final = 1e9
NANOS_PER_MILLION_TOKEN_PRICE: Final = NANOS_PER_DOLLAR / 1e6
"""Of a dollar, that a token costs whose price is one per million."""
_price_fields: Final = msgspec.structs.astuple


def compute_token_cost(price: Price, usage: TokenUsage) -> float:
    """USD, to nine places."""
    prompt = usage.prompt_tokens
    input_price: float
    output_price: float
    cached_price: float | None
    cache_write_price: float | None
    input_price, output_price, cached_price, cache_write_price, tiers = _price_fields(price)
    for start, tier in tiers:
        if prompt > start:
            input_price, output_price, cached_price, cache_write_price, _ = _price_fields(tier)
    cached, written = usage.cached_tokens, usage.cache_write_tokens
    uncached = prompt - cached - written
    total = (uncached * input_price if uncached > 0 else 0.0) + usage.completion_tokens * output_price
    if cached:
        total += cached * (input_price if cached_price is None else cached_price)
    if written:
        total += written * (input_price if cache_write_price is None else cache_write_price)
    return int(total * NANOS_PER_MILLION_TOKEN_PRICE + 0.5) / NANOS_PER_DOLLAR


class PriceTable:
    """The price of each model that is offered, by provider and the model's name here."""

    def __init__(self, backends: Iterable[Backend]) -> None:
        self._configured: dict[tuple[str, str], Price] = {}
        self._prices: dict[tuple[str, str], Price] = {}
        self._by_backend: dict[Backend, Price | None] = {}
        self.price_lookups: list[tuple[str, str, str, str]] = []
        """Provider, model here, model there, base address: of what configuration gives no price for."""
        self.is_complete = False
        """Every price that can be known is."""
        self.replace_backends(backends)

    def replace_backends(self, backends: Iterable[Backend]) -> None:
        """For other offers. What the price list has said stays known, and what requests that still run may cost."""
        backends = list(backends)
        previous_prices, previous_configured = self._prices, self._configured
        self._configured, self._prices = {}, {}
        self.set_configured_prices(backends)
        self.price_lookups = [
            (provider.name, model.id, offer.profile.model, provider.address.geturl())
            for offer in backends
            if ((provider := offer.provider).name, (model := offer.model).id) not in self._configured
        ]
        shipped = _load_builtin_prices() if self.price_lookups else {}
        known = {(name, here): shipped.get((name, there)) for name, here, there, _ in self.price_lookups}
        retained = {
            at: price for at, price in previous_prices.items() if at not in known or at not in previous_configured
        }
        self._prices = retained | {at: price for at, price in known.items() if price is not None} | self._configured
        self.is_complete = all(at in self._prices for at in known)

    def set_configured_prices(self, backends: Iterable[Backend]) -> None:
        """Takes the prices that offers carry themselves."""
        self._by_backend.clear()
        for backend in backends:
            model = backend.model
            if model.input_price is not None or model.output_price is not None:
                price = Price(model.input_price or 0.0, model.output_price or 0.0)
                self._configured[backend.provider_name, model.id] = self._prices[backend.provider_name, model.id] = (
                    price
                )

    def add_fetched_prices(self, fetched: Mapping[tuple[str, str], Price]) -> None:
        """What the price list had; other models stay without a price."""
        self._prices |= {**fetched, **self._configured}
        self._by_backend.clear()
        self.is_complete = True

    def get_for_backend(self, backend: Backend) -> Price | None:
        """As `of`; found again by the offer itself."""
        price = self._by_backend.get(backend)
        if price is None:
            price = self._by_backend[backend] = self.get(backend.provider_name, backend.model_id)
        return price

    def get(self, provider: str | None, model: str | None) -> Price | None:
        """None where it is not known, or not yet."""
        return self._prices.get((provider or "", model or ""))


def _load_builtin_prices() -> dict[tuple[str, str], Price]:
    """Of the built-in models, by provider and the model's name there."""
    text = resources.files("svc.gateway").joinpath("prices.json").read_bytes()
    rows = msgspec.json.decode(text, type=list[tuple[str, str, Price]])
    return {(provider, model): price for provider, model, price in rows}
