"""Which gateway a client calls. Pure.

the stage's or client's own > svc.init, svc.set_gateway_url > SVC_GATEWAY_URL > SVC_PLATFORM_URL + /v1 > the default,
which is a `svc up` that runs with the same SVC_HOME, else the production gateway
"""

from __future__ import annotations

import ipaddress
import warnings
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, urlsplit

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
    """The base address, without a slash at its end. `configured` is what the SDK was told, complete.

    Raises InvalidRequest for what is no address. SVC_GATEWAY_URL without `/v1` is taken as it is, with a warning.
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
    """The address with `/v1` at its end, once. Raises InvalidRequest."""
    normalized = normalize_url(url, setting_name)
    return normalized if normalized.endswith("/v1") else f"{normalized}/v1"


def normalize_url(url: str, setting_name: str = "gateway_url") -> str:
    """With a scheme (http for this machine and bare numbers of a private network, else https), without end slashes."""
    lacks_scheme = "://" not in url
    text = url.strip().rstrip("/")
    if lacks_scheme:
        text = f"{_default_scheme(text)}://{text}"
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    is_plain_ascii = text.isascii() and text.isprintable() and " " not in text
    if not is_valid or not is_plain_ascii or any(mark in text for mark in "?#@"):
        raise InvalidRequest(
            f"{setting_name} is not an http or https address: http://127.0.0.1:3000/v1 is one.", param=setting_name
        )
    return text


def _check_v1_suffix(url: str, setting_name: str, warn: WarnCallback) -> str:
    normalized = normalize_url(url, setting_name)
    if not normalized.endswith("/v1"):
        warn(f"{setting_name} does not end in /v1; it is used as it is.")
    return normalized


def _default_scheme(text: str) -> str:
    host = _host(urlsplit(f"//{text}"))
    if host == "localhost" or host.endswith(".localhost"):
        return "http"
    try:
        return "http" if ipaddress.ip_address(host).is_private else "https"
    except ValueError:
        return "https"


def _host(parts: SplitResult) -> str:
    try:
        return parts.hostname or ""
    except ValueError:
        return ""
