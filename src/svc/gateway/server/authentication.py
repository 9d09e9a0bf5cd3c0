"""Authenticates requests to model endpoints by API key, from memory or after a database query. No sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from svc.dialects.endpoint import Endpoint
from svc.errors import AuthenticationFailed, PermissionDenied, SvcError, TooLarge
from svc.gateway.server.path_hints import is_variant, path_not_found
from svc.gateway.server.request import Request
from svc.security import (
    Keyring,
    check_other_key_headers,
    hash_secret,
    keys_unavailable_error,
    secret_from_headers,
    session_from_request,
)
from svc.session_tokens import CSRF_HEADER
from svc.wire.key import ApiKey

_CSRF_HEADER: Final = CSRF_HEADER.encode("ascii")
_UPLOAD_PATH: Final = "/v1/audio/transcriptions"
"""The path outside the endpoint table to which clients send large bodies."""


def authenticate(
    request: Request,
    endpoint: Endpoint,
    keyring: Keyring,
    on_loaded: Callable[[Request], None],
) -> None:
    """Set `api_key` or `rejection` of a request, or both if the key lacks the scope or a content header is invalid.

    If the key is not in memory, set `is_key_loading`, query the database, and call `on_loaded` later.
    The body of a rejected request is read, but not kept.
    """
    headers = dict(request.headers)
    try:
        secret = _extract_secret(headers, request.method)
        request.api_key = keyring.lookup_cached(secret)
        if request.api_key is not None:
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


def check_large_body_allowed(request: Request, keyring: Keyring, endpoints: Mapping[bytes, Endpoint]) -> None:
    """Check path and API key before a large body is kept in memory.

    Raises AuthenticationFailed for an invalid key, NotFound for a path such as `/chat/completions` without `/v1`, and
    TooLarge for any other path that accepts no large body.
    """
    if not request.path.startswith(b"/v1/"):
        path = request.path.decode("latin-1")
        known_paths = [*[known.decode("ascii") for known in endpoints], _UPLOAD_PATH]
        if any(is_variant(path, known) for known in known_paths):
            raise path_not_found(path, known_paths)
        raise TooLarge("This path does not accept large bodies.")
    keyring.lookup_cached(_extract_secret(dict(request.headers), request.method))
    request.is_key_checked = True


def cached_api_key(request: Request, keyring: Keyring) -> ApiKey | None:
    """Return the API key of a request that was rejected before authentication. Never queries the database."""
    try:
        return keyring.lookup_cached(_extract_secret(dict(request.headers), request.method))
    except (AuthenticationFailed, PermissionDenied):
        return None


def hash_request_secret(request: Request) -> bytes:
    """Return the digest by which the keyring finds the API key of an authenticated request."""
    return hash_secret(_extract_secret(dict(request.headers), request.method) or "")


def _extract_secret(headers: Mapping[bytes, bytes], method: bytes) -> str | None:
    """Return the key, else the token of the session cookie, or None.

    Raises PermissionDenied without a CSRF token, and AuthenticationFailed for a key in another header.
    """
    authorization = headers.get(b"authorization", b"").decode("latin-1")
    secret = secret_from_headers(authorization, headers.get(b"x-api-key", b"").decode("latin-1"))
    if secret is None and (cookies := headers.get(b"cookie")) is not None:
        token, host = (headers.get(name, b"").decode("latin-1") for name in (_CSRF_HEADER, b"host"))
        secret = session_from_request(method.decode("latin-1"), cookies.decode("latin-1"), token, host)
    if secret is None:
        check_other_key_headers([name.decode("latin-1") for name in headers])
    return secret


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
