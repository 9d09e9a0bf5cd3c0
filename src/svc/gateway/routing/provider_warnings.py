"""The warning at a start or a reload without any provider."""

from __future__ import annotations

from collections.abc import Sequence

from svc.gateway.routing.providers import Provider, key_variables, missing_keys
from svc.settings import Settings


def describe_missing_providers(settings: Settings, providers: Sequence[Provider]) -> str | None:
    """Return a warning that names the missing keys and settings, or None if a chat model is offered."""
    if providers or settings.local.enabled:
        return None
    builtin = ", ".join(variables[-1] for variables in key_variables().values())
    missing = [f"{variable} for {name}" for name, variable in missing_keys(settings)]
    also = f" The configuration names providers whose key is not set: {', '.join(missing)}." if missing else ""
    return (
        f"No provider is available, so every chat gets 404 model_not_found.{also} "
        f"Set {builtin} (or its _FILE variant), or add [[providers]] to svc.toml; see: svc doctor"
    )
