"""Checks the provider and model names of stages against the catalog and the configuration. No network I/O.

The names at a gateway on another machine are unknown here, so they are not checked.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from svc import settings
from svc.allowed_hosts import is_loopback_name
from svc.client.address import resolve_gateway_url
from svc.client.config import current_config
from svc.errors import UsageError
from svc.gateway.routing.provider_entries import LOCAL_PROVIDER, models_by_provider
from svc.gateway.routing.providers import build_providers
from svc.pipeline.definition import Pipeline, Stage
from svc.wire.production_gateway import PRODUCTION_GATEWAY

ADD_PROVIDER_HINT: Final = "Add what is missing to [[providers]] in svc.toml."
ADD_LOCAL_MODEL_HINT: Final = "To add a model to this machine: svc models add NAME"


def check_provider_stages(pipeline: Pipeline, environ: Mapping[str, str]) -> None:
    """Raise UsageError for an unknown provider or model, with line and column, the stage and the known names."""
    provider_stages = [stage for stage in pipeline.stages if stage.target == "integration"]
    if not provider_stages:
        return
    loaded = settings.load(environ)
    known_models = models_by_provider(loaded)
    keyed_providers = {provider.name for provider in build_providers(loaded) if provider.key and not provider.query}
    for stage in provider_stages:
        if _uses_remote_gateway(stage, environ, keyed_providers, known_models):
            continue
        check_stage_names(pipeline, stage, known_models)


def check_stage_names(pipeline: Pipeline, stage: Stage, models_by_provider: Mapping[str, tuple[str, ...]]) -> None:
    """Raise UsageError if the provider or the model of a stage is unknown."""
    if found := _find_problem((stage.provider or "").lower(), stage.model or "", models_by_provider):
        field, problem = found
        location = pipeline.locations.get((stage.id, field))
        prefix = f"{location}: " if location else ""
        is_local = field == "model" and (stage.provider or "").lower() == LOCAL_PROVIDER
        hint = ADD_LOCAL_MODEL_HINT if is_local else ADD_PROVIDER_HINT
        raise UsageError(f"{prefix}Stage {stage.id!r}: {problem} {hint}")


def _find_problem(
    provider: str, model: str, models_by_provider: Mapping[str, tuple[str, ...]]
) -> tuple[str, str] | None:
    """Return the field with the unknown name, and the problem."""
    if provider and provider not in models_by_provider:
        return "provider", f"unknown provider {provider[:60]!r}. {_list_known(provider, models_by_provider)}"
    if provider and model not in models_by_provider[provider]:
        known_names = _list_known(model, models_by_provider[provider])
        return "model", f"the provider {provider} has no model {model[:60]!r}. {known_names}"
    all_models = [name for models in models_by_provider.values() for name in models]
    if model not in all_models:
        return "model", f"no provider has a model {model[:60]!r}. {_list_known(model, all_models)}"
    return None


def _list_known(name: str, known: Iterable[str]) -> str:
    names = list(known)
    matches = difflib.get_close_matches(name, names, 1)
    suggestion = f"Did you mean {matches[0]!r}? " if matches else ""
    return f"{suggestion}Known: {', '.join(names) or 'none'}."


def _uses_remote_gateway(
    stage: Stage,
    environ: Mapping[str, str],
    keyed_providers: set[str],
    models_by_provider: Mapping[str, tuple[str, ...]],
) -> bool:
    """Return whether the stage uses a configured gateway on another machine, whose models may differ."""
    if not stage.options.gateway_url and _uses_provider_directly(stage, keyed_providers, models_by_provider):
        return False
    url = resolve_gateway_url(stage.options.gateway_url, current_config().gateway, environ, warn=_ignore_warning)
    return url != PRODUCTION_GATEWAY and not is_loopback_name(urlsplit(url).hostname or "")


def _uses_provider_directly(
    stage: Stage, keyed_providers: set[str], models_by_provider: Mapping[str, tuple[str, ...]]
) -> bool:
    if stage.provider:
        return stage.provider.lower() in keyed_providers
    return any(stage.model in models_by_provider[name] for name in keyed_providers)


def _ignore_warning(message: str) -> None:
    """Ignore the warning: the client repeats it when the stage is created."""
