"""Checks `routing.strategies` and `routing.weights` against the models of the providers. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

from svc.errors import UsageError
from svc.settings import Settings


def check_strategies(settings: Settings, models: Mapping[str, Iterable[str]]) -> None:
    """Raise UsageError that names the line of an unknown model or provider, or of weights without an effect.

    `models`: the model ids of each provider.
    """
    providers_by_model: dict[str, list[str]] = {}
    for provider, model_ids in models.items():
        for model_id in model_ids:
            providers_by_model.setdefault(model_id, []).append(provider)
    routing = settings.routing
    for model_id in routing.strategies:
        _check_model(settings, "strategies", model_id, providers_by_model)
    for model_id, weights in routing.weights.items():
        _check_model(settings, "weights", model_id, providers_by_model)
        providers = providers_by_model[model_id]
        for provider in weights:
            if provider not in providers:
                what = f"a provider that does not have the model {model_id!r}"
                raise _unknown_name(settings, "weights", what, provider, providers)
        strategy = routing.strategies.get(model_id, routing.strategy)
        if strategy != "weighted":
            location = settings.source_location("weights", model_id)
            raise UsageError(
                f"{location}: [routing.weights] of {model_id!r} has no effect, because its strategy is {strategy!r}."
            )
        if not any(weights.get(provider, 1) for provider in providers):
            location = settings.source_location("weights", model_id)
            raise UsageError(f"{location}: [routing.weights] of {model_id!r} has no provider with a weight above 0.")


def _check_model(settings: Settings, table: str, model_id: str, known_models: Collection[str]) -> None:
    """Raise UsageError for a name that is an alias, or that no provider has."""
    if (model := settings.models_by_alias.get(model_id)) is not None:
        location = settings.source_location(table, model_id)
        names = f"the alias {model_id[:100]!r}: use its model {model[:100]!r}"
        raise UsageError(f"{location}: [routing.{table}] names {names}.")
    if model_id not in known_models:
        raise _unknown_name(settings, table, "a model that no provider has", model_id, known_models)


def _unknown_name(settings: Settings, table: str, what: str, name: str, known_names: Iterable[str]) -> UsageError:
    close_matches = difflib.get_close_matches(name, list(known_names), 1)
    hint = f"; did you mean {close_matches[0]!r}?" if close_matches else "."
    return UsageError(f"{settings.source_location(table, name)}: [routing.{table}] names {what}: {name[:100]!r}{hint}")
