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
from svc.wire.key import CONFIGURED_SCOPES, PUBLISHER_SCOPES, Key

ASK_SECONDS: Final = 5.0
"""For the database to say whether it knows a key."""
MAX_SECRET: Final = 512
"""Characters of a key; a longer one is not even hashed."""
_clock: Final = time.time  # looked up once: on the hot path
ISSUED_PREFIX: Final = "svc_sk_"


class Issued(Protocol):
    """Keys that lie in a database, as far as they are in memory."""

    def get(self, digest: bytes) -> Key | bool:
        """The key; False when there is none; True when only `load` can say."""

    def load(self, digest: bytes, then: Callable[[], None]) -> None:
        """Asks the database, then calls `then` from the event loop; if `get` still says True, it did not answer."""


class Keyring:
    """The keys that are accepted, found by secret in constant time."""

    def __init__(
        self, secrets_: Iterable[str], issued: Issued | None = None, *, publishers: Iterable[str] = ()
    ) -> None:
        """`secrets_` are those of SVC_API_KEYS, `publishers` those of SVC_REGISTRY_KEYS."""
        self._issued = issued
        self._keys: dict[bytes, Key] = {}
        self._add("SVC_API_KEYS", secrets_, CONFIGURED_SCOPES)
        self._add("SVC_REGISTRY_KEYS", publishers, PUBLISHER_SCOPES)

    def _add(self, name: str, secrets_: Iterable[str], scopes: frozenset[str]) -> None:
        """A secret that is in both lists may do what either may."""
        for number, secret in enumerate(secrets_, 1):
            digest = digest_of(secret)
            known = self._keys.get(digest)
            self._keys[digest] = Key(
                id=f"env-{digest.hex()[:12]}",
                name=f"{name} #{number}",
                scopes=scopes if known is None else scopes | known.scopes,
            )

    def find(self, secret: str | None) -> Key:
        """The key of a secret, if it is in memory; raises AuthenticationFailed."""
        found = self.look(secret)
        if found is None:
            raise AuthenticationFailed("The API key is not valid.")
        return found

    def look(self, secret: str | None) -> Key | None:
        """The key of a secret; None when the database must be asked first (`load`). Raises AuthenticationFailed."""
        if secret is None:
            raise AuthenticationFailed("There is no API key: send the header 'Authorization: Bearer <API_KEY>'.")
        found: Key | bool | None = None
        if len(secret) <= MAX_SECRET:
            digest = digest_of(secret)
            found = self._keys.get(digest)
            if found is None and self._issued is not None and secret.startswith(ISSUED_PREFIX):
                found = self._issued.get(digest)
        if found is True:
            return None
        if not found:
            raise AuthenticationFailed("The API key is not valid.")
        if found.expires <= time.time():
            raise AuthenticationFailed("The API key has expired.")
        return found

    def has(self, digest: bytes, key: Key) -> bool:
        """A key that was found by its secret's digest is still the one that it stands for, and has not expired."""
        found: Key | bool | None = self._keys.get(digest)
        if found is None and self._issued is not None:
            found = self._issued.get(digest)
        return found is key and (key.expires == math.inf or _clock() < key.expires)

    def load(self, secret: str, then: Callable[[], None]) -> None:
        """Asks the database about a secret, then calls `then`; if `look` still cannot say, nobody can now."""
        if self._issued is not None:
            self._issued.load(digest_of(secret), then)

    async def authenticate(self, secret: str | None) -> Key:
        """The key of a secret, wherever it is; raises AuthenticationFailed, or RateLimited when nobody can say."""
        found = self.look(secret)
        if found is None and secret is not None:
            answer: asyncio.Future[Key | None] = asyncio.get_running_loop().create_future()
            self.load(secret, lambda: self._tell(secret, answer))
            with contextlib.suppress(TimeoutError):
                found = await asyncio.wait_for(answer, ASK_SECONDS)
        if found is None:
            raise unsure()
        return found

    def _tell(self, secret: str, answer: asyncio.Future[Key | None]) -> None:
        """Looks at once: a change noticed a moment later makes memory forget the key that was just read."""
        if answer.done():
            return
        try:
            answer.set_result(self.look(secret))
        except AuthenticationFailed as refusal:
            answer.set_exception(refusal)


def unsure() -> RateLimited:
    """The database does not answer, and this key has not been seen before: it may be valid, so this is no 401."""
    return RateLimited("The API key cannot be checked at the moment; try again.", retry_after=1)


def digest_of(secret: str) -> bytes:
    """SHA-256 of a secret; the secrets are long and random, so no slow hash is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def new_secret() -> str:
    """A fresh API key: 256 random bits."""
    return ISSUED_PREFIX + secrets.token_urlsafe(32)


def bearer(authorization: str | None, api_key: str | None = None) -> str | None:
    """The secret in an Authorization header (scheme in any case), else the one in `x-api-key`."""
    if authorization:
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() == "bearer" and secret.strip():
            return secret.strip()
    return api_key or None
