"""The cost of tokens. Prices come from the configuration, or else from the package genai-prices. Uses no clock.

That package needs 28 MB and 0.25 s to load. `price_list` runs it once for the offered models, in a separate process.
Until then, the built-in models have the prices of `prices.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from importlib import resources
from typing import Final

import msgspec

from svc.gateway.accounting.price import Price
from svc.gateway.routing.backends import Backend
from svc.settings import ModelSettings
from svc.wire.usage import TokenUsage

NANO_USD_PER_USD: Final = 1e9
NANOS_PER_MILLION_TOKEN_PRICE: Final = NANO_USD_PER_USD / 1e6
"""Nano-USD per token at a price of 1 USD per million tokens."""
NANO_USD: Final = Decimal("0.000000001")
MAX_FLOAT_NANO_USD: Final = 1e12
"""A thousand USD: above this, the error of floats can reach TIE_MARGIN."""
TIE_MARGIN: Final = 1e-3
_price_fields: Final = msgspec.structs.astuple
REQUESTS_FIELD: Final = Price.__struct_fields__.index("requests")


def to_nano_usd(usd: float) -> int:
    """Return an amount of at least 0 in nano-USD. `round` would take five times as long."""
    return int(usd * NANO_USD_PER_USD + 0.5)


def find_configured_price(model: ModelSettings) -> Price | None:
    """Return the price in the configuration of a model, or None if it has neither `input_price` nor `output_price`."""
    if model.input_price is None and model.output_price is None:
        return None
    return Price(
        model.input_price or 0.0,
        model.output_price or 0.0,
        cached=model.cached_input_price,
        written=model.cache_write_price,
    )


def compute_token_cost(price: Price, usage: TokenUsage) -> float:
    """Return the cost in USD, rounded half up to nine decimal places. The prices have at most nine themselves."""
    fields = _price_fields(price)
    if usage.special_tokens or fields[REQUESTS_FIELD] is not None:
        return _compute_exact_cost(price, usage)
    prompt = usage.prompt_tokens
    input_price: float
    output_price: float
    cached_price: float | None
    cache_write_price: float | None
    input_price, output_price, cached_price, cache_write_price, tiers = fields[:5]
    for start, tier in tiers:
        if prompt > start:
            input_price, output_price, cached_price, cache_write_price = _price_fields(tier)[:4]
    cached, written = usage.cached_tokens, usage.cache_write_tokens
    uncached = prompt - cached - written
    total = (uncached * input_price if uncached > 0 else 0.0) + usage.completion_tokens * output_price
    if cached:
        total += cached * (input_price if cached_price is None else cached_price)
    if written:
        total += written * (input_price if cache_write_price is None else cache_write_price)
    scaled: float = total * NANOS_PER_MILLION_TOKEN_PRICE + 0.5
    nano_usd = int(scaled)
    if scaled > MAX_FLOAT_NANO_USD or not TIE_MARGIN < scaled - nano_usd < 1 - TIE_MARGIN:
        return _compute_exact_cost(price, usage)  # the error of floats could change the last decimal
    return nano_usd / NANO_USD_PER_USD


def _compute_exact_cost(price: Price, usage: TokenUsage) -> float:
    total = sum((tokens * Decimal(repr(usd)) for _, tokens, usd in cost_terms(price, usage)), Decimal())
    return float((total / 1_000_000).quantize(NANO_USD, ROUND_HALF_UP))


def cost_terms(price: Price, usage: TokenUsage) -> list[tuple[str, int, float]]:
    """Return each kind of tokens with their number and their price in USD per million tokens.

    The last term is the request itself, if it has a price of its own.
    Audio and images count as text if the model has no price for them. Providers do not report which part of a mixed
    prompt was cached: the gateway assumes that this is the text, and the rest of the cached tokens are audio or images.
    """
    for start, tier in price.tiers:
        if usage.prompt_tokens > start:
            price = tier
    cached_price = price.input if price.cached is None else price.cached
    written_price = price.input if price.written is None else price.written
    written_1h = min(usage.cache_write_1h_tokens, usage.cache_write_tokens)
    terms = [
        ("cache write", usage.cache_write_tokens - written_1h, written_price),
        ("1-hour cache write", written_1h, written_price if price.written_1h is None else price.written_1h),
    ]
    text, cached = usage.prompt_tokens - usage.cache_write_tokens, usage.cached_tokens
    kinds = [
        ("audio", usage.prompt_audio_tokens, price.input_audio, price.cached_audio),
        ("image", usage.prompt_image_tokens, price.input_image, price.cached_image),
    ]
    priced_kinds = [kind for kind in kinds if kind[1] and kind[2] is not None]
    text -= sum(count for _, count, _, _ in priced_kinds)
    cached_text = cached if not priced_kinds else max(0, min(cached, text))
    cached -= cached_text
    terms = [("input", text - cached_text, price.input), ("cached input", cached_text, cached_price), *terms]
    for name, count, kind_price, cached_kind_price in priced_kinds:
        cached_count = min(cached, count)
        cached -= cached_count
        terms.append((f"{name} input", count - cached_count, kind_price or 0.0))
        cached_kind_price = cached_price if cached_kind_price is None else cached_kind_price
        terms.append((f"cached {name} input", cached_count, cached_kind_price))
    completion = usage.completion_tokens
    for name, count, output_price in (
        ("audio output", usage.completion_audio_tokens, price.output_audio),
        ("image output", usage.completion_image_tokens, price.output_image),
    ):
        if count and output_price is not None:
            completion -= count
            terms.append((name, count, output_price))
    terms.append(("output", completion, price.output))
    if price.requests is not None:
        terms.append(("requests", 1, price.requests))
    return [term for term in terms if term[1] > 0]


class PriceTable:
    """The price of each offered model, by provider and model id."""

    def __init__(self, backends: Iterable[Backend]) -> None:
        self._configured: dict[tuple[str, str], Price] = {}
        self._prices: dict[tuple[str, str], Price] = {}
        self._by_backend: dict[Backend, Price | None] = {}
        self.price_lookups: list[tuple[str, str, str, str]] = []
        """Provider, model id, upstream model and base address of each model without a configured price."""
        self.is_complete = False
        """Whether the table has all prices that are available."""
        self.replace_backends(backends)

    def replace_backends(self, backends: Iterable[Backend]) -> None:
        """Apply changed backends. Keep fetched prices, and the prices that requests in progress need."""
        backends = list(backends)
        previously_configured, self._configured = self._configured, {}
        self.set_configured_prices(backends)
        self.price_lookups = [
            (backend.provider_name, backend.model_id, backend.profile.model, backend.provider.address.geturl())
            for backend in backends
            if (backend.provider_name, backend.model_id) not in self._configured
        ]
        builtin_prices = load_builtin_prices() if self.price_lookups else {}
        prices = dict(self._prices)  # a copy, because the ingester's thread reads the other one
        for provider, model_id, upstream_model, _ in self.price_lookups:
            builtin_price = builtin_prices.get((provider, upstream_model))
            if builtin_price is not None:
                prices[provider, model_id] = builtin_price
            elif (provider, model_id) in previously_configured:
                prices.pop((provider, model_id), None)
        self._prices = prices
        self.is_complete = all((provider, model_id) in prices for provider, model_id, _, _ in self.price_lookups)

    def set_configured_prices(self, backends: Iterable[Backend]) -> None:
        """Add the prices in the configuration of the backends' models."""
        self._by_backend.clear()
        for backend in backends:
            price = find_configured_price(backend.model)
            if price is not None:
                price_key = backend.provider_name, backend.model_id
                self._configured[price_key] = self._prices[price_key] = price

    def add_fetched_prices(
        self, lookups: list[tuple[str, str, str, str]], fetched: Mapping[tuple[str, str], Price]
    ) -> None:
        """Add the prices that the price list has for `lookups`. The other models in `lookups` have no price.

        The table stays incomplete if a reload has changed `price_lookups` since.
        """
        self._prices |= {**fetched, **self._configured}
        self._by_backend.clear()
        if lookups is self.price_lookups:
            self.is_complete = True

    def get_for_backend(self, backend: Backend) -> Price | None:
        """Return the price of a backend, or None if it is unknown. Cached by backend."""
        price = self._by_backend.get(backend)
        if price is None:
            price = self._by_backend[backend] = self.get(backend.provider_name, backend.model_id)
        return price

    def get(self, provider: str | None, model: str | None) -> Price | None:
        """Return the price of a model, or None if it is not known (yet)."""
        return self._prices.get((provider or "", model or ""))


def load_builtin_prices() -> dict[tuple[str, str], Price]:
    """Return the prices of the built-in models, by provider and upstream model."""
    text = resources.files("svc.gateway").joinpath("prices.json").read_bytes()
    rows = msgspec.json.decode(text, type=list[tuple[str, str, Price]])
    return {(provider, model): price for provider, model, price in rows}
