"""Who may ask: API keys and their scopes. No storage.

A secret is looked up by its SHA-256, so neither the look-up nor the comparison leaks how much of a guess was right.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

import msgspec

from svc.errors import AuthenticationFailed

MAX_SECRET = 512
"""Characters of a key; a longer one is not even hashed."""


class Key(msgspec.Struct, frozen=True, eq=False):
    """A client's key, without its secret."""

    id: str
    name: str
    scopes: frozenset[str] = frozenset({"chat", "speech", "registry:read", "registry:write", "admin", "metrics"})
    models: frozenset[str] | None = None
    """The models it may use; None is all."""

    def may_use(self, model: str) -> bool:
        """Whether the key's allow-list has the model."""
        return self.models is None or model in self.models


class Keyring:
    """The keys that are accepted, found by secret in constant time."""

    def __init__(self, secrets_: Iterable[str]) -> None:
        self._keys: dict[bytes, Key] = {}
        for number, secret in enumerate(secrets_, 1):
            digest = digest_of(secret)
            self._keys[digest] = Key(id=f"env-{digest.hex()[:12]}", name=f"SVC_API_KEYS #{number}")

    def find(self, secret: str | None) -> Key:
        """The key of a secret; raises AuthenticationFailed."""
        if secret is None:
            raise AuthenticationFailed("There is no API key: send the header 'Authorization: Bearer <API_KEY>'.")
        key = self._keys.get(digest_of(secret)) if len(secret) <= MAX_SECRET else None
        if key is None:
            raise AuthenticationFailed("The API key is not valid.")
        return key


def digest_of(secret: str) -> bytes:
    """SHA-256 of a secret; the secrets are long and random, so no slow hash is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def new_secret() -> str:
    """A fresh API key: 256 random bits."""
    return "svc_sk_" + secrets.token_urlsafe(32)


def bearer(authorization: str | None, api_key: str | None = None) -> str | None:
    """The secret in an Authorization header (scheme in any case), else the one in `x-api-key`."""
    if authorization:
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() == "bearer" and secret.strip():
            return secret.strip()
    return api_key or None
