"""Where a provider's key comes from: a variable of the environment, or a file, which is read anew at each reload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from svc.errors import UsageError
from svc.settings import AccountSettings, ProviderSettings

MAX_KEY_FILE_BYTES = 64 * 1024


def resolve_key(entry: ProviderSettings | AccountSettings, environ: Mapping[str, str], *, letter: str = "") -> str:
    """The key of a provider or an account; empty if it has none. `letter` is that of a built-in provider.

    The order is: PROVIDER_<letter>_API_KEY, PROVIDER_<letter>_API_KEY_FILE, `api_key_file`, `api_key_env`.

    Raises UsageError for a file that cannot be read, or holds no key.
    """
    if letter and (key := environ.get(f"PROVIDER_{letter}_API_KEY")):
        return key
    if letter and (path := environ.get(f"PROVIDER_{letter}_API_KEY_FILE")):
        return read_key_file(path, f"PROVIDER_{letter}_API_KEY_FILE")
    if entry.api_key_file:
        return read_key_file(entry.api_key_file, "api_key_file")
    return environ.get(entry.api_key_env, "") if entry.api_key_env else ""


def read_key_file(path: str, setting: str) -> str:
    """The file's text without the white space around it. Raises UsageError that names the setting and the file."""
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            key = file.read(MAX_KEY_FILE_BYTES).strip()
    except UnicodeDecodeError:
        raise UsageError(f"{setting}: {path} is not a text file.") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no such home folder
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{setting}: {path} cannot be read: {reason}.") from error
    if not key:
        raise UsageError(f"{setting}: {path} holds no key.")
    return key
