"""What the SDK was told for the whole process: `svc.init`, `svc.set_gateway_url`, `svc.set_api_key`. No I/O.

Clients that are made afterwards use it; what a client is given itself comes first, the environment last.
"""

from __future__ import annotations

import threading

import msgspec

from svc.client.address import with_v1_suffix
from svc.errors import InvalidRequest


class SdkConfig(msgspec.Struct, frozen=True):
    """`gateway` is complete, with `/v1`. None: the environment decides."""

    api_key: str | None = msgspec.field(default=None)
    gateway: str | None = None
    registry: str | None = None

    def __repr__(self) -> str:
        return f"Config(gateway={self.gateway!r}, registry={self.registry!r})"  # never the key


class _ConfigHolder:
    """The one configuration of a process, changed as a whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.config = SdkConfig()

    def update(self, **values: str | None) -> None:
        with self._lock:
            self.config = msgspec.structs.replace(self.config, **values)


_config_holder = _ConfigHolder()


def current_config() -> SdkConfig:
    """As of now."""
    return _config_holder.config


def init(
    api_key: str | None = None,
    gateway_url: str | None = None,
    platform_url: str | None = None,
    registry: str | None = None,
) -> None:
    """Configures the SDK anew; what is not given comes from the environment. Raises InvalidRequest for a bad value.

    `/v1` is added to either address where it is missing; `gateway_url` comes before `platform_url`.
    """
    gateway = with_v1_suffix(gateway_url) if gateway_url else None
    if gateway is None and platform_url:
        gateway = with_v1_suffix(platform_url, "platform_url")
    _config_holder.update(api_key=normalize_api_key(api_key), gateway=gateway, registry=registry)


def set_gateway_url(url: str) -> None:
    """The gateway's address; `/v1` is added where it is missing. Raises InvalidRequest."""
    _config_holder.update(gateway=with_v1_suffix(url))


def set_api_key(key: str) -> None:
    """The key that is sent to the gateway. Raises InvalidRequest for one that a header cannot carry."""
    _config_holder.update(api_key=normalize_api_key(key))


def normalize_api_key(key: str | None) -> str | None:
    """The key without the space that copying leaves around it; None for nothing."""
    text = (key or "").strip()
    if not text:
        return None
    if any(ord(letter) < 33 or ord(letter) > 126 for letter in text):
        raise InvalidRequest("The API key has characters that a header cannot carry.", param="api_key")
    return text
