"""Who may ask: API keys and their scopes. No storage: issued keys come from an `Issued`, configured ones from settings.

A secret is looked up by its SHA-256, so neither the look-up nor the comparison leaks how much of a guess was right.
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
"""For the database to say whether it knows a key."""
MAX_SECRET_CHARACTERS: Final = 512
"""Characters of a key; a longer one is not even hashed."""
_clock: Final = time.time  # looked up once: on the hot path
ISSUED_KEY_PREFIX: Final = "svc_sk_"


class IssuedKeySource(Protocol):
    """Keys that lie in a database, as far as they are in memory."""

    def get(self, digest: bytes) -> ApiKey | bool:
        """The key; False when there is none; True when only `load` can say."""

    def load(self, digest: bytes, on_loaded: Callable[[], None]) -> None:
        """Asks the database, then calls `then` from the event loop; if `get` still says True, it did not answer."""


class Keyring:
    """The keys that are accepted, found by secret in constant time."""

    def __init__(
        self,
        configured_secrets: Iterable[str],
        issued: IssuedKeySource | None = None,
        *,
        publishers: Iterable[str] = (),
    ) -> None:
        """`secrets_` are those of SVC_API_KEYS, `publishers` those of SVC_REGISTRY_KEYS."""
        self._issued = issued
        self._keys: dict[bytes, ApiKey] = {}
        self._add("SVC_API_KEYS", configured_secrets, CONFIGURED_SCOPES)
        self._add("SVC_REGISTRY_KEYS", publishers, PUBLISHER_SCOPES)

    def _add(self, variable_name: str, configured_secrets: Iterable[str], scopes: frozenset[str]) -> None:
        """A secret that is in both lists may do what either may."""
        for number, secret in enumerate(configured_secrets, 1):
            digest = hash_secret(secret)
            known = self._keys.get(digest)
            self._keys[digest] = ApiKey(
                id=f"env-{digest.hex()[:12]}",
                name=f"{variable_name} #{number}",
                scopes=scopes if known is None else scopes | known.scopes,
            )

    def require_cached(self, secret: str | None) -> ApiKey:
        """The key of a secret, if it is in memory; raises AuthenticationFailed."""
        found = self.lookup_cached(secret)
        if found is None:
            raise AuthenticationFailed("The API key is not valid.")
        return found

    def lookup_cached(self, secret: str | None) -> ApiKey | None:
        """The key of a secret; None when the database must be asked first (`load`). Raises AuthenticationFailed."""
        if secret is None:
            raise AuthenticationFailed("There is no API key: send the header 'Authorization: Bearer <API_KEY>'.")
        found: ApiKey | bool | None = None
        if len(secret) <= MAX_SECRET_CHARACTERS:
            digest = hash_secret(secret)
            found = self._keys.get(digest)
            if found is None and self._issued is not None and secret.startswith(ISSUED_KEY_PREFIX):
                found = self._issued.get(digest)
        if found is True:
            return None
        if not found:
            raise AuthenticationFailed("The API key is not valid.")
        if found.expires <= time.time():
            raise AuthenticationFailed("The API key has expired.")
        return found

    def is_current(self, digest: bytes, key: ApiKey) -> bool:
        """A key that was found by its secret's digest is still the one that it stands for, and has not expired."""
        found: ApiKey | bool | None = self._keys.get(digest)
        if found is None and self._issued is not None:
            found = self._issued.get(digest)
        return found is key and (key.expires == math.inf or _clock() < key.expires)

    def load(self, secret: str, on_loaded: Callable[[], None]) -> None:
        """Asks the database about a secret, then calls `then`; if `look` still cannot say, nobody can now."""
        if self._issued is not None:
            self._issued.load(hash_secret(secret), on_loaded)

    async def authenticate(self, secret: str | None) -> ApiKey:
        """The key of a secret, wherever it is; raises AuthenticationFailed, or RateLimited when nobody can say."""
        found = self.lookup_cached(secret)
        if found is None and secret is not None:
            future: asyncio.Future[ApiKey | None] = asyncio.get_running_loop().create_future()
            self.load(secret, lambda: self._resolve_lookup(secret, future))
            with contextlib.suppress(TimeoutError):
                found = await asyncio.wait_for(future, KEY_LOOKUP_TIMEOUT_SECONDS)
        if found is None:
            raise keys_unavailable_error()
        return found

    def _resolve_lookup(self, secret: str, future: asyncio.Future[ApiKey | None]) -> None:
        """Looks at once: a change noticed a moment later makes memory forget the key that was just read."""
        if future.done():
            return
        try:
            future.set_result(self.lookup_cached(secret))
        except AuthenticationFailed as refusal:
            future.set_exception(refusal)


def keys_unavailable_error() -> RateLimited:
    """The database does not answer, and this key has not been seen before: it may be valid, so this is no 401."""
    return RateLimited("The API key cannot be checked at the moment; try again.", retry_after=1)


def hash_secret(secret: str) -> bytes:
    """SHA-256 of a secret; the secrets are long and random, so no slow hash is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def generate_secret() -> str:
    """A fresh API key: 256 random bits."""
    return ISSUED_KEY_PREFIX + secrets.token_urlsafe(32)


def secret_from_headers(authorization: str | None, x_api_key: str | None = None) -> str | None:
    """The secret in an Authorization header (scheme in any case), else the one in `x-api-key`."""
    if authorization:
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() == "bearer" and secret.strip():
            return secret.strip()
    return x_api_key or None
