"""Which proxy a provider's requests use: its own setting, else HTTPS_PROXY, HTTP_PROXY and NO_PROXY. No sockets.

The variables are those of curl (https://curl.se/libcurl/c/libcurl-env.html), in lower or upper case.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from svc.errors import UsageError

HTTPS_PROXY: Final = "HTTPS_PROXY"
HTTP_PROXY: Final = "HTTP_PROXY"
NO_PROXY: Final = "NO_PROXY"
DIRECT: Final = "direct"
"""The setting of a provider that uses no proxy."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class OutboundProxy(msgspec.Struct, frozen=True, cache_hash=True):
    """An HTTP proxy. `authorization` is the value of Proxy-Authorization, or empty."""

    host: str
    port: int
    uses_tls: bool = False
    """Whether the connection to the proxy itself uses TLS."""
    authorization: str = ""

    def __repr__(self) -> str:
        return f"OutboundProxy({self.host}:{self.port})"  # without the credentials


def select_proxy(
    setting: str | None, setting_name: str, address: SplitResult, environ: Mapping[str, str]
) -> OutboundProxy | None:
    """Return the proxy for an address, or None for a direct connection.

    `setting` is the provider's own proxy, which has precedence over the environment, and also over NO_PROXY.
    Raises UsageError for an address of a proxy that is not valid. The message has no credentials.
    """
    if setting is not None:
        return None if setting == DIRECT else parse_proxy(setting, setting_name)
    name = HTTPS_PROXY if address.scheme == "https" else HTTP_PROXY
    url = _read_variable(environ, name)
    port = address.port or _DEFAULT_PORTS[address.scheme]
    if not url or is_bypassed(address.hostname or "", port, _read_variable(environ, NO_PROXY)):
        return None
    return parse_proxy(url, name)


def parse_proxy(url: str, source: str) -> OutboundProxy:
    """Parse the address of a proxy, with `http://` if it has no scheme. `source` names the setting in an error."""
    try:
        address = urlsplit(url if "://" in url else f"http://{url}")
        host, port = address.hostname, address.port
        valid = address.scheme in _DEFAULT_PORTS and bool(host) and port != 0 and address.path in ("", "/")
    except ValueError:
        host, port, valid = None, None, False
    if not valid or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"{source} is not the address of an http or https proxy, such as http://proxy.example:3128.")
    authorization = ""
    if address.username is not None:
        credentials = f"{unquote(address.username)}:{unquote(address.password or '')}"
        authorization = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    return OutboundProxy(host, port or _DEFAULT_PORTS[address.scheme], address.scheme == "https", authorization)


def is_bypassed(host: str, port: int, no_proxy: str) -> bool:
    """Return whether NO_PROXY names a host: `*`, a name, a domain with its subdomains, an address, or a CIDR network.

    Each may have a port.
    """
    host = host.lower().rstrip(".")
    return any(_matches(entry.strip().lower(), host, port) for entry in no_proxy.split(","))


def _matches(entry: str, host: str, port: int) -> bool:
    if entry in ("", "*"):
        return entry == "*"
    if "/" in entry or entry.count(":") > 1:
        return _is_in_network(entry, host)
    name, _, entry_port = entry.partition(":")
    name = name.removeprefix("*").strip(".")
    return (not entry_port or entry_port == str(port)) and bool(name) and (host == name or host.endswith(f".{name}"))


def _is_in_network(entry: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False


def _read_variable(environ: Mapping[str, str], name: str) -> str:
    """Return a variable. Its name in lower case has precedence."""
    return environ.get(name.lower()) or environ.get(name) or ""
