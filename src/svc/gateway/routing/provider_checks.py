"""Checks the entries of providers, the fallbacks and the aliases of a configuration."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable
from typing import Final

from svc.errors import UsageError
from svc.gateway.routing.provider_entries import configures_key, load_builtin_providers
from svc.settings import ProviderSettings, Settings
from svc.stores.local_models import installed_kinds

RESERVED_KEY_HEADERS: Final = frozenset(
    {"accept", "connection", "content-length", "content-type", "host", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""Headers that cannot hold a key, because they describe the message or its destination."""
MAX_ALIAS_CHARS: Final = 512
"""Maximum length of an alias, which is that of `model` in a request."""


def check_entries(settings: Settings, entries: Iterable[ProviderSettings]) -> None:
    """Raise UsageError for an invalid entry of `[[providers]]`, or for two with the same name."""
    names: set[str] = set()
    for entry in entries:
        if entry.name in names:
            location = _second_location(settings, entry)
            raise UsageError(f"{location}: two [[providers]] have the same name {entry.name!r}: give one another name.")
        names.add(entry.name)
        _check_entry(settings, entry)


def _second_location(settings: Settings, entry: ProviderSettings) -> str:
    """Return the location of the second entry with a name, which may be that of its preset."""
    same_name = [other for other in settings.providers if other.name == entry.name]
    key = "preset" if all(other.preset == entry.name for other in same_name) else "name"
    return settings.source_location("providers", entry.name, key=key, occurrence=2)


def _check_entry(settings: Settings, entry: ProviderSettings) -> None:
    """Raise UsageError for duplicate models, and for an account with neither a key nor an address of its own."""
    seen = set()
    for model in entry.models or ():
        if model.id in seen:
            earlier = itertools.takewhile(lambda other: other.name != entry.name, settings.providers)
            count = sum(other.id == model.id for provider in earlier for other in provider.models or ())
            location = settings.source_location("providers", model.id, key="id", occurrence=count + 2)
            raise UsageError(f"{location}: provider {entry.name} has the model {model.id!r} twice.")
        seen.add(model.id)
    if entry.preset is not None and any(entry.name == builtin.name for builtin in load_builtin_providers()):
        raise UsageError(f"Provider {entry.name} is built in, so its entry cannot have a preset: give it another name.")
    if (entry.api_key_header or "").lower() in RESERVED_KEY_HEADERS:
        raise UsageError(f"The api_key_header of provider {entry.name} cannot be {entry.api_key_header!r}.")
    if any(not configures_key(account) and account.base_url is None for account in entry.accounts or ()):
        raise UsageError(f"An account of provider {entry.name} has neither a key nor a base_url of its own.")


def check_fallbacks(settings: Settings, entries: Iterable[ProviderSettings]) -> None:
    """Raise UsageError for a fallback to itself, to an unknown model, or to a model of another kind."""
    kinds: dict[str, str] = {model.id: model.kind for entry in entries for model in entry.models or ()}
    if settings.routing.fallbacks:
        kinds = {**installed_kinds(settings), **kinds}
    model_names = set(kinds)
    for name, fallback_ids in settings.routing.fallbacks.items():
        if name in fallback_ids:
            location = settings.source_location("fallbacks", name)
            raise UsageError(f"{location}: [routing.fallbacks] of {name!r} contains the model itself.")
        if len({kinds.get(model_id) for model_id in (name, *fallback_ids)} - {None}) > 1:
            location = settings.source_location("fallbacks", name)
            raise UsageError(f"{location}: [routing.fallbacks] of {name!r} names a model of another kind.")
        for model_id in (name, *fallback_ids):
            if model_id not in model_names:
                location = settings.source_location("fallbacks", model_id)
                raise UsageError(
                    f"{location}: [routing.fallbacks] names a model that no provider has: "
                    f"{model_id!r}{_suggest(model_id, model_names)}"
                )


def check_aliases(settings: Settings, entries: Iterable[ProviderSettings]) -> None:
    """Raise UsageError for an alias that occurs twice, that names itself, or whose model no provider has."""
    if not settings.aliases:
        return
    model_names = {*installed_kinds(settings), *(model.id for entry in entries for model in entry.models or ())}
    names: set[str] = set()
    for alias in settings.aliases:
        if len(alias.name) > MAX_ALIAS_CHARS or not alias.name.isprintable():
            location = settings.source_location("aliases", alias.name, key="name")
            raise UsageError(
                f"{location}: the name of an alias has 1 to {MAX_ALIAS_CHARS} printable characters, unlike "
                f"{alias.name[:40]!r}."
            )
        if alias.name in names:
            location = settings.source_location("aliases", alias.name, key="name", occurrence=2)
            raise UsageError(f"{location}: two [[aliases]] have the name {alias.name!r}.")
        names.add(alias.name)
        if alias.name == alias.model:
            location = settings.source_location("aliases", alias.name, key="name")
            raise UsageError(f"{location}: the alias {alias.name!r} names itself.")
        if alias.model not in model_names:
            location = settings.source_location("aliases", alias.model, key="model")
            raise UsageError(
                f"{location}: [[aliases]] names a model that no provider has: "
                f"{alias.model!r}{_suggest(alias.model, model_names)}"
            )


def _suggest(name: str, known_names: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name, with the most similar known one."""
    close_matches = difflib.get_close_matches(name, known_names, 1)
    return f"; did you mean {close_matches[0]!r}?" if close_matches else "."
