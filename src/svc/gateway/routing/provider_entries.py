"""The entries of providers: the built-in ones of `providers.toml` with configured changes, and the configured ones."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from importlib import resources
from typing import Any, Final

import msgspec

from svc.gateway.routing.presets import configured_entries
from svc.settings import AccountSettings, ProviderSettings, Settings
from svc.stores.local_models import installed_kinds

LOCAL_PROVIDER: Final = "local"
"""The provider of the models and voices of this machine."""


class BuiltinProvider(ProviderSettings, frozen=True, kw_only=True):
    """A built-in provider. Its letter is a part of the names of its environment variables."""

    letter: str


class _ProvidersFile(msgspec.Struct, frozen=True):
    providers: tuple[BuiltinProvider, ...]


def load_builtin_providers() -> tuple[BuiltinProvider, ...]:
    """Return the built-in providers."""
    text = resources.files("svc.gateway").joinpath("providers.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _ProvidersFile).providers


def merge_entries(settings: Settings) -> list[tuple[ProviderSettings, str]]:
    """Return the entry of each provider with its letter, which is empty for a provider that is not built in.

    Built-in providers come first. Raises UsageError for an invalid preset.
    """
    configured = {entry.name: entry for entry in configured_entries(settings)}
    builtins = [
        (_merge_entry(builtin, configured.pop(builtin.name, None)), builtin.letter)
        for builtin in load_builtin_providers()
    ]
    return [*builtins, *((entry, "") for entry in configured.values())]


def _merge_entry(builtin: BuiltinProvider, change: ProviderSettings | None) -> ProviderSettings:
    if change is None:
        return builtin
    fields: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(change).items() if value is not None
    }
    return msgspec.structs.replace(builtin, **fields)


def configures_key(entry: ProviderSettings | AccountSettings) -> bool:
    """Return whether an entry says where its key is read."""
    return bool(entry.api_key_env or entry.api_key_file)


def key_entries(entry: ProviderSettings) -> list[ProviderSettings | AccountSettings]:
    """Return the entry and its accounts, each of which can have a key."""
    return [entry, *(entry.accounts or ())]


def models_by_provider(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the built-in and configured models by provider, with or without a key, and their aliases. No network."""
    models = {entry.name: tuple(model.id for model in entry.models or ()) for entry, _ in merge_entries(settings)}
    models[LOCAL_PROVIDER] = (*installed_kinds(settings), *models.get(LOCAL_PROVIDER, ()))
    return {provider: (*ids, *_aliases_of(settings, ids)) for provider, ids in models.items()}


def _aliases_of(settings: Settings, model_ids: Collection[str]) -> list[str]:
    return [alias.name for alias in settings.aliases if alias.model in model_ids]
