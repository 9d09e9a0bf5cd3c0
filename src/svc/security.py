"""Authenticate requests by API key. Issued keys come from an `IssuedKeySource`, configured ones from settings.

Keys are looked up by their SHA-256 hash, so that timing reveals nothing about the secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from svc.errors import AuthenticationFailed, RateLimited
from svc.wire.key import CONFIGURED_SCOPES, PUBLISHER_SCOPES, ApiKey

KEY_LOOKUP_TIMEOUT_SECONDS: Final = 5.0
"""Timeout of a database lookup of a key."""
MAX_SECRET_CHARACTERS: Final = 512
"""Maximum characters of a key. A longer one is rejected without being hashed."""
_clock: Final = time.time  # avoids an attribute lookup on the hot path
ISSUED_KEY_PREFIX: Final = "svc_sk_"
NEW_KEY_HINT: Final = "The gateway's operator creates keys with: svc keys create"
INVALID_KEY_MESSAGE: Final = f"The API key is not valid. {NEW_KEY_HINT}"
NO_KEY_MESSAGE: Final = "The request has no API key: send the header 'Authorization: Bearer <API_KEY>'."


class IssuedKeySource(Protocol):
    """Issued keys in a database, with a cache in memory."""

    def get(self, digest: bytes) -> ApiKey | bool:
        """Return the key. False means that it does not exist, True that it is not cached: call `load`."""

    def load(self, digest: bytes, on_loaded: Callable[[], None]) -> None:
        """Load the key, then call `on_loaded` in the event loop. If `get` still returns True, the database failed."""


class Keyring:
    """The accepted keys. Lookup takes constant time."""

    def __init__(
        self,
        configured_secrets: Iterable[str],
        issued: IssuedKeySource | None = None,
        *,
        publishers: Iterable[str] = (),
    ) -> None:
        """`configured_secrets` are the keys of SVC_API_KEYS, and `publishers` the keys of SVC_REGISTRY_KEYS."""
        self._issued = issued
        self._keys: dict[bytes, ApiKey] = {}
        self._add("SVC_API_KEYS", configured_secrets, CONFIGURED_SCOPES)
        self._add("SVC_REGISTRY_KEYS", publishers, PUBLISHER_SCOPES)

    def _add(self, variable_name: str, configured_secrets: Iterable[str], scopes: frozenset[str]) -> None:
        """Add secrets. A secret in both lists has the scopes of both."""
        for number, secret in enumerate(configured_secrets, 1):
            digest = hash_secret(secret)
            existing = self._keys.get(digest)
            self._keys[digest] = ApiKey(
                id=f"env-{digest.hex()[:12]}",
                name=f"{variable_name} #{number}",
                scopes=scopes if existing is None else scopes | existing.scopes,
            )

    def require_cached(self, secret: str | None) -> ApiKey:
        """Return the key of a secret if it is cached. Raises AuthenticationFailed."""
        key = self.lookup_cached(secret)
        if key is None:
            raise AuthenticationFailed(INVALID_KEY_MESSAGE)
        return key

    def lookup_cached(self, secret: str | None) -> ApiKey | None:
        """Return the key of a secret. None means that it is not cached: call `load`. Raises AuthenticationFailed."""
        if secret is None:
            raise AuthenticationFailed(NO_KEY_MESSAGE)
        key: ApiKey | bool | None = None
        if len(secret) <= MAX_SECRET_CHARACTERS:
            digest = hash_secret(secret)
            key = self._keys.get(digest)
            if key is None and self._issued is not None and secret.startswith(ISSUED_KEY_PREFIX):
                key = self._issued.get(digest)
        if key is True:
            return None
        if not key:
            raise AuthenticationFailed(INVALID_KEY_MESSAGE)
        if key.expires <= time.time():
            raise AuthenticationFailed(f"The API key has expired. {NEW_KEY_HINT}")
        return key

    def is_current(self, digest: bytes, key: ApiKey) -> bool:
        """Return whether the key that was found by this digest is unchanged and not expired."""
        current_key: ApiKey | bool | None = self._keys.get(digest)
        if current_key is None and self._issued is not None:
            current_key = self._issued.get(digest)
        return current_key is key and (key.expires == math.inf or _clock() < key.expires)

    def load(self, secret: str, on_loaded: Callable[[], None]) -> None:
        """Load a key, then call `on_loaded`. If `lookup_cached` still returns None, the database failed."""
        if self._issued is not None:
            self._issued.load(hash_secret(secret), on_loaded)

    async def authenticate(self, secret: str | None) -> ApiKey:
        """Return the key of a secret. Raises AuthenticationFailed, or RateLimited if the database is down."""
        key = self.lookup_cached(secret)
        if key is None and secret is not None:
            future: asyncio.Future[ApiKey | None] = asyncio.get_running_loop().create_future()
            self.load(secret, lambda: self._resolve_lookup(secret, future))
            with contextlib.suppress(TimeoutError):
                key = await asyncio.wait_for(future, KEY_LOOKUP_TIMEOUT_SECONDS)
        if key is None:
            raise keys_unavailable_error()
        return key

    def _resolve_lookup(self, secret: str, future: asyncio.Future[ApiKey | None]) -> None:
        """Look up the key immediately, since a change of the key removes it from the cache."""
        if future.done():
            return
        try:
            future.set_result(self.lookup_cached(secret))
        except AuthenticationFailed as error:
            future.set_exception(error)


def keys_unavailable_error() -> RateLimited:
    """Return the error for an uncached key while the database is down. The key may be valid, so this is not a 401."""
    return RateLimited("The API key cannot be checked at the moment. Try again.", retry_after=1)


def hash_secret(secret: str) -> bytes:
    """Return the SHA-256 hash of a secret. Secrets are long and random, so a slow password hash is unnecessary."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def generate_secret() -> str:
    """Return a new API key with 256 random bits."""
    return ISSUED_KEY_PREFIX + secrets.token_urlsafe(32)


def secret_from_headers(authorization: str | None, x_api_key: str | None = None) -> str | None:
    """Return the bearer token of `Authorization` (RFC 6750), else the value of `x-api-key`."""
    if authorization:
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() == "bearer" and secret.strip():
            return secret.strip()
    return x_api_key or None
