"""Chooses the gateway that a client calls. No I/O.

Precedence: the stage's or client's own > svc.init, svc.set_gateway_url > SVC_GATEWAY_URL > SVC_PLATFORM_URL + /v1 >
the default. The default is a running `svc up` with the same SVC_HOME, else the production gateway.
"""

from __future__ import annotations

import ipaddress
import warnings
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from svc.errors import InvalidRequest
from svc.wire.production_gateway import PRODUCTION_GATEWAY

WarnCallback = Callable[[str], None]


def _warn_caller(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def resolve_gateway_url(
    explicit: str | None,
    configured: str | None,
    environ: Mapping[str, str],
    warn: WarnCallback = _warn_caller,
    default: str = PRODUCTION_GATEWAY,
) -> str:
    """Return the base URL without a trailing slash. `configured` is complete and is returned unchanged.

    SVC_GATEWAY_URL without `/v1` is used unchanged, with a warning. Raises InvalidRequest for an invalid URL.
    """
    if explicit:
        return with_v1_suffix(explicit)
    if configured:
        return configured
    if from_environment := environ.get("SVC_GATEWAY_URL", "").strip():
        return _check_v1_suffix(from_environment, "SVC_GATEWAY_URL", warn)
    if platform_url := environ.get("SVC_PLATFORM_URL", "").strip():
        return with_v1_suffix(platform_url, "SVC_PLATFORM_URL")
    return default


def with_v1_suffix(url: str, setting_name: str = "gateway_url") -> str:
    """Return the URL with the suffix `/v1`. Raises InvalidRequest."""
    normalized = normalize_url(url, setting_name)
    return normalized if normalized.endswith("/v1") else f"{normalized}/v1"


def normalize_url(url: str, setting_name: str = "gateway_url") -> str:
    """Return the URL with a scheme and without trailing slashes. Raises InvalidRequest.

    The default scheme is http for localhost and private IP addresses, else https.
    """
    if not isinstance(url, str):
        raise InvalidRequest(f"{setting_name} is not a string.", param=setting_name)
    lacks_scheme = "://" not in url
    text = url.strip().rstrip("/")
    if lacks_scheme:
        text = f"{_default_scheme(text)}://{text}"
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    is_plain_ascii = text.isascii() and text.isprintable() and " " not in text
    if not is_valid or not is_plain_ascii or any(character in text for character in "?#@"):
        raise InvalidRequest(
            f"{setting_name} is not an http or https URL such as http://127.0.0.1:3000/v1.", param=setting_name
        )
    return text


def _check_v1_suffix(url: str, setting_name: str, warn: WarnCallback) -> str:
    normalized = normalize_url(url, setting_name)
    if not normalized.endswith("/v1"):
        warn(f"{setting_name} does not end in /v1. It is used unchanged.")
    return normalized


def _default_scheme(text: str) -> str:
    host = _host(text)
    if host == "localhost" or host.endswith(".localhost"):
        return "http"
    try:
        return "http" if ipaddress.ip_address(host).is_private else "https"
    except ValueError:
        return "https"


def _host(text: str) -> str:
    try:
        return urlsplit(f"//{text}").hostname or ""
    except ValueError:
        return ""
