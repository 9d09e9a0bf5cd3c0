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

from svc.gateway.offers import Offer
from svc.gateway.price import Price
from svc.wire.usage import Usage

NANO: Final = 1e9
NANOS: Final = NANO / 1e6
"""Of a dollar, that a token costs whose price is one per million."""
_FIELDS: Final = msgspec.structs.astuple


def cost_of(price: Price, usage: Usage) -> float:
    """USD, to nine places."""
    prompt = usage.prompt_tokens
    for_input: float
    for_output: float
    for_cached: float | None
    for_written: float | None
    for_input, for_output, for_cached, for_written, tiers = _FIELDS(price)
    for start, tier in tiers:
        if prompt > start:
            for_input, for_output, for_cached, for_written, _ = _FIELDS(tier)
    cached, written = usage.cached_tokens, usage.cache_write_tokens
    plain = prompt - cached - written
    total = (plain * for_input if plain > 0 else 0.0) + usage.completion_tokens * for_output
    if cached:
        total += cached * (for_input if for_cached is None else for_cached)
    if written:
        total += written * (for_input if for_written is None else for_written)
    return int(total * NANOS + 0.5) / NANO


class Prices:
    """The price of each model that is offered, by provider and the model's name here."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        self._given: dict[tuple[str, str], Price] = {}
        self._prices: dict[tuple[str, str], Price] = {}
        self._found: dict[Offer, Price | None] = {}
        self.wanted: list[tuple[str, str, str, str]] = []
        """Provider, model here, model there, base address: of what configuration gives no price for."""
        self.complete = False
        """Every price that can be known is."""
        self.replace(offers)

    def replace(self, offers: Iterable[Offer]) -> None:
        """For other offers. What the price list has said stays known, and what requests that still run may cost."""
        offers = list(offers)
        before, given = self._prices, self._given
        self._given, self._prices = {}, {}
        self.give(offers)
        self.wanted = [
            (provider.name, model.id, offer.target.model, provider.address.geturl())
            for offer in offers
            if ((provider := offer.provider).name, (model := offer.model).id) not in self._given
        ]
        shipped = _shipped() if self.wanted else {}
        known = {(name, here): shipped.get((name, there)) for name, here, there, _ in self.wanted}
        stays = {at: price for at, price in before.items() if at not in known or at not in given}
        self._prices = stays | {at: price for at, price in known.items() if price is not None} | self._given
        self.complete = all(at in self._prices for at in known)

    def give(self, offers: Iterable[Offer]) -> None:
        """Takes the prices that offers carry themselves."""
        self._found.clear()
        for offer in offers:
            model = offer.model
            if model.input_price is not None or model.output_price is not None:
                price = Price(model.input_price or 0.0, model.output_price or 0.0)
                self._given[offer.provider_name, model.id] = self._prices[offer.provider_name, model.id] = price

    def learn(self, found: Mapping[tuple[str, str], Price]) -> None:
        """What the price list had; other models stay without a price."""
        self._prices |= {**found, **self._given}
        self._found.clear()
        self.complete = True

    def of_offer(self, offer: Offer) -> Price | None:
        """As `of`; found again by the offer itself."""
        found = self._found.get(offer)
        if found is None:
            found = self._found[offer] = self.of(offer.provider_name, offer.model_id)
        return found

    def of(self, provider: str | None, model: str | None) -> Price | None:
        """None where it is not known, or not yet."""
        return self._prices.get((provider or "", model or ""))


def _shipped() -> dict[tuple[str, str], Price]:
    """Of the built-in models, by provider and the model's name there."""
    text = resources.files("svc.gateway").joinpath("prices.json").read_bytes()
    rows = msgspec.json.decode(text, type=list[tuple[str, str, Price]])
    return {(provider, model): price for provider, model, price in rows}
