"""Reads the API keys of providers from environment variables or files. A reload reads the files again."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from svc.errors import UsageError
from svc.settings import AccountSettings, ProviderSettings, Settings

MAX_KEY_FILE_BYTES = 64 * 1024
KEY_FILE_VARIABLE = re.compile(r"PROVIDER_[A-Z]_API_KEY_FILE")


def resolve_key(entry: ProviderSettings | AccountSettings, environ: Mapping[str, str], *, letter: str = "") -> str:
    """Return the key of a provider or an account, or an empty string. `letter` is that of a built-in provider.

    The order is: PROVIDER_<letter>_API_KEY, PROVIDER_<letter>_API_KEY_FILE, `api_key_file`, `api_key_env`.

    Raises UsageError for a file that cannot be read or contains no key.
    """
    if letter and (key := environ.get(f"PROVIDER_{letter}_API_KEY")):
        return key
    if letter and (path := environ.get(f"PROVIDER_{letter}_API_KEY_FILE")):
        return read_key_file(path, f"PROVIDER_{letter}_API_KEY_FILE")
    if entry.api_key_file:
        return read_key_file(entry.api_key_file, "api_key_file")
    return environ.get(entry.api_key_env, "") if entry.api_key_env else ""


def read_key_file(path: str, setting: str) -> str:
    """Return the file's text without surrounding white space. Raises UsageError that names the setting and the file."""
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            key = file.read(MAX_KEY_FILE_BYTES).strip()
    except UnicodeDecodeError:
        raise UsageError(f"{setting}: {path} is not a text file.") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: the home folder does not exist
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{setting}: {path} cannot be read: {reason}.") from error
    if not key:
        raise UsageError(f"{setting}: {path} contains no key.")
    return key


def warn_of_exposed_key_files(settings: Settings) -> Iterator[str]:
    """Yield a warning for each key file that every user of this machine can read."""
    paths = [
        (name, path)
        for name, path in settings.environ.items()
        if KEY_FILE_VARIABLE.fullmatch(name) and path and not settings.environ.get(name.removesuffix("_FILE"))
    ]
    for provider in settings.providers:
        entries: list[ProviderSettings | AccountSettings] = [provider, *(provider.accounts or ())]
        paths += [("api_key_file", entry.api_key_file) for entry in entries if entry.api_key_file]
    for setting, path in paths:
        try:
            mode = Path(path).expanduser().stat().st_mode
        except (OSError, RuntimeError):
            continue  # `read_key_file` reports it
        if mode & stat.S_IROTH:
            yield f"{setting}: every user of this machine can read {path}: run chmod o-r on it."
