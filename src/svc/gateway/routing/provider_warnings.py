"""The warnings at a start or a reload about providers and aliases without an API key, about key files and prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from svc.gateway.routing.provider_keys import warn_of_exposed_key_files
from svc.gateway.routing.providers import Provider
from svc.gateway.routing.unconfigured_providers import key_variables, missing_keys, models_without_key
from svc.settings import Settings

MIN_USUAL_USD_PER_MILLION_TOKENS: Final = 0.0005
"""A price below it is probably that of one token. The cheapest models cost ten times as much."""
_PRICE_KEYS: Final = ("input_price", "output_price", "cached_input_price", "cache_write_price")


def provider_warnings(settings: Settings, providers: Sequence[Provider]) -> list[str]:
    """Return the warnings about keys that are missing or exposed. `providers` are those with a key."""
    return [
        *_warn_of_no_providers(settings, providers),
        *_warn_of_unavailable_aliases(settings, providers),
        *warn_of_exposed_key_files(settings),
        *_warn_of_prices_per_token(settings),
    ]


def _warn_of_prices_per_token(settings: Settings) -> Iterator[str]:
    for number, entry in enumerate(settings.providers):
        for model_number, model in enumerate(entry.models or ()):
            for key in _PRICE_KEYS:
                price: float | None = getattr(model, key)
                if price is None or not 0 < price < MIN_USUAL_USD_PER_MILLION_TOKENS:
                    continue
                path = f"providers[{number}].models[{model_number}].{key}"
                yield (
                    f"{settings.config.find_origin(path) or 'settings'}: {key} of {model.id!r} is {price:g} USD per "
                    f"million tokens. If one token costs that much, write {price * 1e6:g}."
                )


def _warn_of_no_providers(settings: Settings, providers: Sequence[Provider]) -> Iterator[str]:
    """Name the missing keys and settings, unless a chat model is offered."""
    if providers or settings.local.enabled:
        return
    builtin = ", ".join(variables[-1] for variables in key_variables().values())
    missing = [f"{variable} for {name}" for name, variable in missing_keys(settings)]
    also = f" The configuration names providers whose key is not set: {', '.join(missing)}." if missing else ""
    yield (
        f"No provider is available, so every chat gets 404 model_not_found.{also} "
        f"Set {builtin} (or its _FILE variant), or add [[providers]] to svc.toml; see: svc doctor"
    )


def _warn_of_unavailable_aliases(settings: Settings, providers: Sequence[Provider]) -> Iterator[str]:
    if not settings.aliases:
        return
    offered = {model.id for provider in providers for model in provider.models}
    reasons = models_without_key(settings, providers)
    for alias in settings.aliases:
        if alias.model not in offered and alias.model in reasons:
            location = settings.source_location("aliases", alias.name, key="name")
            yield f"{location}: the alias {alias.name!r} is not available: {reasons[alias.model]}."
