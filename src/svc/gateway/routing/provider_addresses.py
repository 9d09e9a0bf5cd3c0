"""Parses and checks the base URLs of providers. No network."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from svc.dialects.base import Dialect
from svc.errors import UsageError
from svc.gateway.routing.provider_dialects import load_usable_dialects

AMBIGUOUS_IDNA_CHARACTERS: Final = re.compile("[\u00df\u1e9e\u03c2\u200c\u200d]")
"""Sharp s, final sigma, and joiners: IDNA 2003 removes or replaces them, IDNA 2008 does not (RFC 5894, section 7.2)."""
HOST_NAME_PATTERN: Final = re.compile("[A-Za-z0-9._-]+")
EXAMPLE_BASE_URL: Final = urlsplit("https://api.example.com")
API_VERSION_PATH: Final = re.compile(r"(?:^|/v[0-9]+)$")
MODEL_PLACEHOLDER: Final = "{model}"
"""The part of an address that stands for the model's name at the provider."""


def parse_base_url(name: str, base_url: str, dialect: Dialect) -> SplitResult:
    """Return the base URL of the provider `name`. Raises UsageError if it is invalid, or has the path of requests."""
    try:
        address = _encode_host(urlsplit(base_url.rstrip("/")))
        valid = address.scheme in ("http", "https") and bool(address.hostname) and (address.port or 1) > 0
    except UnicodeError:
        raise UsageError(
            f"The host name in the address of provider {name} has no unambiguous ASCII form: "
            "write it in its ASCII form (xn--…)."
        ) from None
    except ValueError:
        valid = False
    if not valid or not address.geturl().isascii() or not base_url.isprintable() or " " in base_url:
        example = _with_api_path(EXAMPLE_BASE_URL, "", dialect)
        raise UsageError(f"The address of provider {name} is not an http or https address, such as {example}.")
    if address.query or address.fragment or "@" in address.netloc or address.port == 0:
        hint = " Write its api-version as api_version." if "api-version=" in address.query else ""
        raise UsageError(f"The address of provider {name} may have only a host, a port and a path.{hint}")
    if "{" in (rest := address.path.replace(MODEL_PLACEHOLDER, "")) or "}" in rest:
        raise UsageError(
            f"The address of provider {name} may contain no braces except {MODEL_PLACEHOLDER} in its path."
        )
    _check_host(name, address.hostname or "")
    _check_path_suffix(name, address, dialect)
    return address


def _check_path_suffix(name: str, address: SplitResult, dialect: Dialect) -> None:
    """Raise UsageError for an address that ends in the chat path of a dialect."""
    if API_VERSION_PATH.search(address.path):  # the common case: the other dialects need not be loaded
        return
    for other in (
        dialect,
        *(candidate for candidate in load_usable_dialects() if candidate is not dialect),
    ):
        suffix = other.chat_path.removeprefix("/v1")
        if not address.path.endswith(suffix):
            continue
        path = address.path.removesuffix(suffix)
        example = _with_api_path(address, path, dialect)
        message_start = f"The address of provider {name} ends in {suffix}, which "
        if other is dialect:
            raise UsageError(f"{message_start}each request adds: it should look like {example}.")
        raise UsageError(
            f"{message_start}belongs to the dialect {other.name}, and the provider's is {dialect.name}: "
            f'if it speaks {other.name}, write dialect = "{other.name}" and the address '
            f"{_with_api_path(address, path, other)}; "
            f"if it speaks {dialect.name}, the address should look like {example}."
        )


def _with_api_path(address: SplitResult, path: str, dialect: Dialect) -> str:
    """Return the address with a path. It includes `/v1` unless the dialect's request paths begin with it."""
    path = path.removesuffix("/v1") if dialect.chat_path.startswith("/v1/") else path or "/v1"
    return address._replace(path=path).geturl()


def _check_host(name: str, host: str) -> None:
    """Raise UsageError for an invalid host name, such as `a..b`."""
    try:
        is_valid = bool(host.encode("idna")) and (":" in host or HOST_NAME_PATTERN.fullmatch(host) is not None)
    except UnicodeError:  # an empty or too long label
        is_valid = False
    if not is_valid:
        raise UsageError(
            f"The host name {host[:64]!r} in the address of provider {name} is not valid: "
            "it should look like api.example.com or 10.0.0.5."
        )


def _encode_host(address: SplitResult) -> SplitResult:
    """Return the address with an encoded international host name (IDNA 2003).

    Raises UnicodeError for an invalid name, and for letters that IDNA 2008 encodes differently. With the latter, the
    gateway could send the key to the owner of another name.
    """
    if address.netloc.isascii():
        return address
    user, at_sign, host_and_port = address.netloc.rpartition("@")
    host, colon, port = host_and_port.partition(":")
    encoded = host.encode("idna").decode()
    if AMBIGUOUS_IDNA_CHARACTERS.search(host) or not HOST_NAME_PATTERN.fullmatch(encoded):
        raise UnicodeError(host)
    return address._replace(netloc=f"{user}{at_sign}{encoded}{colon}{port}")
