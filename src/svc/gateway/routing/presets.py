"""Presets of `[[providers]]`, from `presets.toml`: address, key variable, quirks and models of known vendors. Pure.

An entry overrides any value of its preset.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from importlib import resources
from typing import Final
from urllib.parse import urlsplit

import msgspec

from svc.errors import UsageError
from svc.settings import AccountSettings, ProviderSettings, Settings

MAX_QUOTED_PRESET_CHARS: Final = 64


class _Preset(ProviderSettings, frozen=True, kw_only=True):
    example: str = ""
    """The form of the address, if each user has another one."""
    path: str = ""
    """The path of an address that has only a host."""
    versioned_path: str = ""
    """The same for an entry with `api_version`."""


class _PresetsFile(msgspec.Struct, frozen=True):
    presets: tuple[_Preset, ...]


def configured_entries(settings: Settings) -> tuple[ProviderSettings, ...]:
    """Return the entries of `[[providers]]` with the values of their presets.

    Raises UsageError for an unknown preset, and for an entry that lacks an address or models that only it can name.
    """
    if all(entry.preset is None for entry in settings.providers):
        return settings.providers
    return tuple(entry if entry.preset is None else _expand_entry(settings, entry) for entry in settings.providers)


@functools.cache
def load_presets() -> dict[str, _Preset]:
    """Return the presets by name."""
    text = resources.files("svc.gateway").joinpath("presets.toml").read_text(encoding="utf-8")
    return {preset.name: preset for preset in msgspec.convert(tomllib.loads(text), _PresetsFile).presets}


def _expand_entry(settings: Settings, entry: ProviderSettings) -> ProviderSettings:
    presets, name = load_presets(), entry.preset or ""
    preset = presets.get(name)
    if preset is None:
        known_names = ", ".join(presets)
        close_matches = difflib.get_close_matches(name, list(presets), 1)
        hint = f"; did you mean {close_matches[0]!r}?" if close_matches else ";"
        raise _entry_error(
            settings, entry, f"there is no preset {name[:MAX_QUOTED_PRESET_CHARS]!r}{hint} known: {known_names}."
        )
    values = {
        field: getattr(preset, field) if getattr(entry, field) is None else getattr(entry, field)
        for field in ProviderSettings.__struct_fields__
    }
    if values["base_url"] is None:
        raise _entry_error(settings, entry, f"the preset {name} needs your base_url, such as {preset.example}.")
    if not values["models"]:
        raise _entry_error(
            settings, entry, f'the preset {name} has no models: name yours, as models = [{{ id = "…" }}].'
        )
    path = preset.versioned_path if entry.api_version else preset.path
    values["base_url"] = _complete_address(values["base_url"], path)
    values["accounts"] = tuple(_complete_account(account, path) for account in entry.accounts or ()) or None
    return ProviderSettings(**values)


def _complete_account(account: AccountSettings, path: str) -> AccountSettings:
    if account.base_url is None:
        return account
    return msgspec.structs.replace(account, base_url=_complete_address(account.base_url, path))


def _complete_address(base_url: str, path: str) -> str:
    """Add the path to an address that has none."""
    try:
        address = urlsplit(base_url)
    except ValueError:  # the check of the address reports it
        return base_url
    return base_url.rstrip("/") + path if address.path in ("", "/") and not address.query else base_url


def _entry_error(settings: Settings, entry: ProviderSettings, problem: str) -> UsageError:
    location = f"{settings.source_location('[[providers]]', entry.name)}: " if settings.path else ""
    return UsageError(f"{location}Provider {entry.name}: {problem}")
