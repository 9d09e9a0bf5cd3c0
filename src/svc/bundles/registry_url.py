"""Check the addresses of registries: an http or https URL, or a folder as file://PATH. No I/O."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from svc.bundles.http_client import parse_origin
from svc.errors import RegistryFailed, UsageError

_FOLDER_HOSTS: Final = ("", "localhost", "~", ".")
"""The hosts of file URLs that name a folder. A relative path has its first part in place of the host."""


def check_registry_url(url: str) -> None:
    """Raise UsageError for an address that is neither that of a server nor that of a folder."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme == "file":
        check_folder_host(url, parts.netloc)
    elif not is_server_url(url):
        raise UsageError(
            f"{url[:200]!r} is not the URL of a registry, such as http://HOST:PORT, https://HOST or file:///PATH."
        )


def is_server_url(url: str) -> bool:
    """Return whether the URL is that of a registry server: http or https, without credentials, query and fragment."""
    try:
        parse_origin(url)
    except RegistryFailed:
        return False
    parts = urlsplit(url)
    return parts.username is None and parts.port != 0 and not any(character in url for character in "?#")


def check_folder_host(url: str, host: str) -> None:
    """Raise UsageError for a file URL with the name of a machine."""
    if host not in _FOLDER_HOSTS:
        raise UsageError(f"{url[:200]!r} has a host. Use file:///PATH for a folder.")
