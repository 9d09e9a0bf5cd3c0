"""The process-wide configuration of the client library: `svc.init`, `svc.set_gateway_url`, `svc.set_api_key`. No I/O.

Clients that are created later use it. Arguments of a client take precedence over it, and it over the environment.
"""

from __future__ import annotations

import threading

import msgspec

from svc.client.address import with_v1_suffix
from svc.errors import InvalidRequest

SDK_DEFAULT_MODEL = "gpt-4o-mini"


class SdkConfig(msgspec.Struct, frozen=True):
    """The configuration. `gateway` is complete, with `/v1`. None means that the environment decides."""

    api_key: str | None = msgspec.field(default=None)
    gateway: str | None = None
    registry: str | None = None

    def __repr__(self) -> str:
        return f"Config(gateway={self.gateway!r}, registry={self.registry!r})"  # never the key


class _ConfigHolder:
    """Holds the configuration of the process, which is replaced as a whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.config = SdkConfig()

    def update(self, **values: str | None) -> None:
        with self._lock:
            self.config = msgspec.structs.replace(self.config, **values)


_config_holder = _ConfigHolder()


def current_config() -> SdkConfig:
    """Return the current configuration."""
    return _config_holder.config


def init(
    api_key: str | None = None,
    gateway_url: str | None = None,
    platform_url: str | None = None,
    registry: str | None = None,
) -> None:
    """Configure the client library. Values that are None come from the environment. Raises InvalidRequest.

    Adds `/v1` to either URL if it is missing. `gateway_url` takes precedence over `platform_url`.
    """
    gateway = with_v1_suffix(gateway_url) if gateway_url else None
    if gateway is None and platform_url:
        gateway = with_v1_suffix(platform_url, "platform_url")
    _config_holder.update(api_key=normalize_api_key(api_key), gateway=gateway, registry=registry)


def set_gateway_url(url: str) -> None:
    """Set the URL of the gateway. Adds `/v1` if it is missing. Raises InvalidRequest."""
    _config_holder.update(gateway=with_v1_suffix(url))


def set_api_key(key: str) -> None:
    """Set the API key for the gateway. Raises InvalidRequest if it cannot be sent in a header."""
    _config_holder.update(api_key=normalize_api_key(key))


def normalize_api_key(key: str | None) -> str | None:
    """Return the key without surrounding whitespace, or None if it is empty. Raises InvalidRequest."""
    if key is not None and not isinstance(key, str):
        raise InvalidRequest("The API key is not a string.", param="api_key")
    text = (key or "").strip()
    if not text:
        return None
    if any(ord(character) < 33 or ord(character) > 126 for character in text):
        raise InvalidRequest("The API key has characters that are not allowed in a header.", param="api_key")
    return text
