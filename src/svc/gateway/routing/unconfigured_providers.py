"""The providers that are not offered because they have no key, and the environment variables of keys."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import msgspec

from svc.errors import UsageError
from svc.gateway.routing.presets import configured_entries
from svc.gateway.routing.provider_entries import key_entries, load_builtin_providers, merge_entries
from svc.gateway.routing.providers import Provider, build_provider
from svc.settings import DEFAULT_DIALECT, ModelSettings, Settings


def check_entries_without_keys(settings: Settings, providers: Iterable[Provider]) -> Iterator[str]:
    """Yield the errors that a start would report if the keys of all configured providers were set.

    `providers` are those of `build_providers`, which omits a provider without its key.
    """
    built_names = {provider.name for provider in providers}
    merged_entries = {entry.name: entry for entry, _ in merge_entries(settings)}
    for name in [entry.name for entry in configured_entries(settings) if entry.name not in built_names]:
        entry = merged_entries[name]
        urls: list[str | None] = [each.base_url for each in key_entries(entry) if each.base_url is not None]
        try:
            for url in urls or [None]:
                build_provider(entry, url, "", settings.environ)
        except UsageError as error:
            yield f"{settings.source_location('[[providers]]', entry.name)}: {error.message}"


def missing_keys(settings: Settings) -> list[tuple[str, str]]:
    """Return provider and environment variable of each configured key whose variable is not set."""
    return [
        (entry.name, key_entry.api_key_env)
        for entry in configured_entries(settings)
        for key_entry in key_entries(entry)
        if key_entry.api_key_env and not key_entry.api_key_file and not settings.environ.get(key_entry.api_key_env)
    ]


class UnconfiguredProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that has no key. One of the variables would give it one."""

    name: str
    dialect: str
    base_url: str
    variables: tuple[str, ...]
    models: tuple[ModelSettings, ...]


def unconfigured_providers(settings: Settings, present: Container[str]) -> list[UnconfiguredProvider]:
    """Return the providers that are not offered because they have no key. `present` are the names of the others."""
    missing = []
    for entry, letter in merge_entries(settings):
        if entry.name not in present:
            accounts = (account.api_key_env for account in entry.accounts or ())
            variables = (entry.api_key_env, f"PROVIDER_{letter}_API_KEY" if letter else None, *accounts)
            missing.append(
                UnconfiguredProvider(
                    name=entry.name,
                    dialect=entry.dialect or DEFAULT_DIALECT,
                    base_url=entry.base_url or "",
                    variables=tuple(dict.fromkeys(filter(None, variables))),
                    models=tuple(entry.models or ()),
                )
            )
    return missing


def models_without_key(settings: Settings, providers: Iterable[Provider]) -> dict[str, str]:
    """Return the models that are not offered because their provider has no key, each with the reason."""
    missing: dict[str, str] = {}
    for provider in unconfigured_providers(settings, {provider.name for provider in providers}):
        # Clients get the reason: a name that is not in upper case may be a key that is in the wrong place.
        names = " or ".join(name for name in provider.variables if name.isupper())
        reason = f"the provider {provider.name} has no API key{f' (set {names})' if names else ''}"
        for model in provider.models:
            missing.setdefault(model.id, reason)
    return missing


def key_variables() -> dict[str, tuple[str, ...]]:
    """Return the environment variables for the key of each built-in provider, in order of precedence."""
    return {
        builtin.name: (f"PROVIDER_{builtin.letter}_API_KEY", *filter(None, (builtin.api_key_env,)))
        for builtin in load_builtin_providers()
    }
