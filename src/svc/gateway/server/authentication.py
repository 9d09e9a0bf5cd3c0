"""Authenticates requests to model endpoints by API key, from memory or after a database query. No sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from svc.dialects.endpoint import Endpoint
from svc.errors import AuthenticationFailed, SvcError, TooLarge
from svc.gateway.server.request import Request
from svc.security import Keyring, hash_secret, keys_unavailable_error, secret_from_headers
from svc.wire.key import ApiKey


class KeyHeaderCache:
    """The key headers of a connection's last request with a valid key. Equal headers need no hash."""

    __slots__ = ("_api_key", "_authorization", "_is_enabled", "_x_api_key", "digest")

    def __init__(self, *, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        self._api_key: ApiKey | None = None
        self._authorization = self._x_api_key = b""
        self.digest = b""

    def match(self, headers: Mapping[bytes, bytes], keyring: Keyring) -> ApiKey | None:
        """Return the key if the headers are equal, and the key is unchanged and not expired."""
        if (
            self._is_enabled
            and self._api_key is not None
            and headers.get(b"authorization", b"") == self._authorization
            and headers.get(b"x-api-key", b"") == self._x_api_key
            and keyring.is_current(self.digest, self._api_key)
        ):
            return self._api_key
        return None

    def store(self, headers: Mapping[bytes, bytes], secret: str, api_key: ApiKey) -> None:
        """Cache the headers of a request with a valid key."""
        self._authorization, self._x_api_key = headers.get(b"authorization", b""), headers.get(b"x-api-key", b"")
        self._api_key, self.digest = api_key, hash_secret(secret)


def authenticate(
    request: Request,
    endpoint: Endpoint,
    keyring: Keyring,
    key_cache: KeyHeaderCache,
    on_loaded: Callable[[Request], None],
) -> None:
    """Set `api_key` or `rejection` of a request, or both if the key lacks the scope or a content header is invalid.

    If the key is not in memory, set `is_key_loading`, query the database, and call `on_loaded` later.
    The body of a rejected request is read, but not kept.
    """
    headers = dict(request.headers)
    request.api_key, secret = key_cache.match(headers, keyring), None
    try:
        if request.api_key is None:
            secret = _extract_secret(headers)
            request.api_key = keyring.lookup_cached(secret)
            if request.api_key is not None and secret is not None:
                key_cache.store(headers, secret, request.api_key)
        if request.api_key is not None:
            request.key_digest = key_cache.digest
            request.api_key.require_scope(endpoint.scope)
    except SvcError as error:
        request.rejection = error
        return
    try:
        request.check_content_headers(headers)
    except SvcError as error:
        request.rejection = error
    if request.api_key is None and secret is not None:
        request.is_key_loading = True
        keyring.load(secret, lambda: _on_key_loaded(request, endpoint, secret, keyring, on_loaded))


def check_large_body_allowed(request: Request, keyring: Keyring) -> None:
    """Check path and API key before a large body is kept in memory.

    Raises AuthenticationFailed for an invalid key, and TooLarge for a path that accepts no large body.
    """
    if not request.path.startswith(b"/v1/"):
        raise TooLarge("This path does not accept large bodies.")
    keyring.lookup_cached(_extract_secret(dict(request.headers)))
    request.is_key_checked = True


def cached_api_key(request: Request, keyring: Keyring) -> ApiKey | None:
    """Return the API key of a request that was rejected before authentication. Never queries the database."""
    try:
        return keyring.lookup_cached(_extract_secret(dict(request.headers)))
    except AuthenticationFailed:
        return None


def _extract_secret(headers: Mapping[bytes, bytes]) -> str | None:
    authorization = headers.get(b"authorization", b"").decode("latin-1")
    return secret_from_headers(authorization, headers.get(b"x-api-key", b"").decode("latin-1"))


def _on_key_loaded(
    request: Request, endpoint: Endpoint, secret: str, keyring: Keyring, on_loaded: Callable[[Request], None]
) -> None:
    request.is_key_loading = False
    try:
        request.api_key = keyring.lookup_cached(secret)
        if request.api_key is None:
            raise keys_unavailable_error()
        request.api_key.require_scope(endpoint.scope)
    except SvcError as error:
        request.rejection = error
        request.body.clear()
    on_loaded(request)
