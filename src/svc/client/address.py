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
from svc.wire.production import PRODUCTION_GATEWAY

Warn = Callable[[str], None]


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def resolve(
    option: str | None,
    configured: str | None,
    environ: Mapping[str, str],
    warn: Warn = _warn,
    default: str = PRODUCTION_GATEWAY,
) -> str:
    """The base address, without a slash at its end. `configured` is what the SDK was told, complete.

    Raises InvalidRequest for what is no address. SVC_GATEWAY_URL without `/v1` is taken as it is, with a warning.
    """
    if option:
        return with_version(option)
    if configured:
        return configured
    if given := environ.get("SVC_GATEWAY_URL", "").strip():
        return _full(given, "SVC_GATEWAY_URL", warn)
    if platform := environ.get("SVC_PLATFORM_URL", "").strip():
        return with_version(platform, "SVC_PLATFORM_URL")
    return default


def with_version(url: str, name: str = "gateway_url") -> str:
    """The address with `/v1` at its end, once. Raises InvalidRequest."""
    base = clean(url, name)
    return base if base.endswith("/v1") else f"{base}/v1"


def clean(url: str, name: str = "gateway_url") -> str:
    """With a scheme (http for this machine and bare numbers of a private network, else https), without end slashes."""
    bare = "://" not in url
    text = url.strip().rstrip("/")
    if bare:
        text = f"{_scheme(text)}://{text}"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    plain = text.isascii() and text.isprintable() and " " not in text
    if not valid or not plain or any(mark in text for mark in "?#@"):
        raise InvalidRequest(f"{name} is not an http or https address: http://127.0.0.1:3000/v1 is one.", param=name)
    return text


def _full(url: str, name: str, warn: Warn) -> str:
    base = clean(url, name)
    if not base.endswith("/v1"):
        warn(f"{name} does not end in /v1; it is used as it is.")
    return base


def _scheme(text: str) -> str:
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
