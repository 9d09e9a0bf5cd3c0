"""Whether the provider and the model that a stage names exist, by the catalogue and the configuration alone.

No network call is made. The names at a gateway on another machine cannot be known here, so they are not judged.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from svc import settings
from svc.client.address import resolve
from svc.client.config import current
from svc.errors import UsageError
from svc.gateway.providers import known_models, providers_of
from svc.loopback import is_loopback_name
from svc.pipeline.definition import Stage
from svc.wire.production import PRODUCTION_GATEWAY

ADD: Final = "Add what is missing to [[providers]] in svc.toml."


def check_offered(stages: Iterable[Stage], environ: Mapping[str, str]) -> None:
    """Raises UsageError that names the stage and what is known."""
    asking = [stage for stage in stages if stage.target == "integration"]
    if not asking:
        return
    loaded = settings.load(environ)
    known = known_models(loaded)
    with_key = {provider.name for provider in providers_of(loaded) if provider.key}
    for stage in asking:
        if _is_elsewhere(stage, environ, with_key, known):
            continue
        if problem := _problem((stage.provider or "").lower(), stage.model or "", known):
            raise UsageError(f"Stage {stage.id!r}: {problem} {ADD}")


def _problem(provider: str, model: str, known: Mapping[str, tuple[str, ...]]) -> str | None:
    if provider and provider not in known:
        return f"there is no provider {provider[:60]!r}. {_listed(provider, known)}"
    if provider and model not in known[provider]:
        return f"the provider {provider} has no model {model[:60]!r}. {_listed(model, known[provider])}"
    every = [one for models in known.values() for one in models]
    if model not in every:
        return f"no provider has a model {model[:60]!r}. {_listed(model, every)}"
    return None


def _listed(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    return f"{guess}Known: {', '.join(names) or 'none'}."


def _is_elsewhere(
    stage: Stage, environ: Mapping[str, str], with_key: set[str], known: Mapping[str, tuple[str, ...]]
) -> bool:
    """Whether the stage goes to a gateway that is named and not on this machine, which may be configured otherwise."""
    if not stage.options.gateway_url and _is_direct(stage, with_key, known):
        return False
    url = resolve(stage.options.gateway_url, current().gateway, environ, warn=_ignore)
    return url != PRODUCTION_GATEWAY and not is_loopback_name(urlsplit(url).hostname or "")


def _is_direct(stage: Stage, with_key: set[str], known: Mapping[str, tuple[str, ...]]) -> bool:
    if stage.provider:
        return stage.provider.lower() in with_key
    return any(stage.model in known[name] for name in with_key)


def _ignore(message: str) -> None:
    """The client warns of the same address when the stage is made."""
