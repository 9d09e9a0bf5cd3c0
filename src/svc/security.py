"""Authenticate requests by API key. Issued keys come from an `IssuedKeySource`, configured ones from settings.

Keys are looked up by their SHA-256 hash, so that timing reveals nothing about the secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from svc.ephemeral_tokens import (
    EPHEMERAL_KEY_PREFIX,
    ISSUED_PARENT_PREFIX,
    EphemeralClaims,
    build_ephemeral_key,
    derive_signing_key,
    encode_token,
    find_parent_reference,
    stretch_configured_secret,
    verify_token,
)
from svc.errors import AuthenticationFailed, RateLimited
from svc.session_tokens import (
    CSRF_HEADER,
    SESSION_PREFIX,
    SESSION_SECONDS,
    check_csrf,
    encode_session,
    find_session_key_reference,
    session_from_cookies,
    verify_session,
)
from svc.wire.key import CONFIGURED_SCOPES, CONSOLE_SCOPES, PUBLISHER_SCOPES, ApiKey, EphemeralKey

log = logging.getLogger("svc.keys")

KEY_LOOKUP_TIMEOUT_SECONDS: Final = 5.0
"""Timeout of a database lookup of a key."""
MAX_SECRET_CHARACTERS: Final = 512
"""Maximum characters of a key. A longer one is rejected without being hashed."""
_clock: Final = time.time  # avoids an attribute lookup on the hot path
ISSUED_KEY_PREFIX: Final = "svc_sk_"
CONFIGURED_KEYS_VARIABLE: Final = "SVC_API_KEYS"
NEW_KEY_HINT: Final = "The gateway's operator creates keys with: svc keys create"
INVALID_KEY_MESSAGE: Final = f"The API key is not valid. {NEW_KEY_HINT}"
INVALID_SESSION_MESSAGE: Final = "The session has ended. Log in again."
INVALID_EPHEMERAL_KEY_MESSAGE: Final = (
    "The ephemeral key is not valid: it was changed, or its parent key was revoked or rotated. "
    "Get another one from the application that made it."
)
MAX_CACHED_EPHEMERAL_KEYS = 20_000
"""Maximum cached ephemeral keys: 40 MB at 2 kB each."""
NO_KEY_MESSAGE: Final = "The request has no API key: send the header 'Authorization: Bearer <API_KEY>'."
OTHER_KEY_HEADERS: Final = ("api-key", "x-goog-api-key", "x-litellm-api-key", "x-portkey-api-key")
"""Headers in which clients of Azure, Google and other gateways send a key. None of them is read here."""


class IssuedKeySource(Protocol):
    """Issued keys in a database, with a cache in memory."""

    def get(self, digest: bytes) -> ApiKey | bool:
        """Return the key. False means that it does not exist, True that it is not cached: call `load`."""

    def load(self, digest: bytes, on_loaded: Callable[[], None]) -> None:
        """Load the key, then call `on_loaded` in the event loop. If `get` still returns True, the database failed."""

    def find_by_id(self, id: str) -> list[tuple[bytes, ApiKey]] | None:
        """Return the key under each of its digests, two after a rotation, or None if it is not cached.

        The list of a key that does not exist is empty.
        """

    def load_by_id(self, id: str, on_loaded: Callable[[], None]) -> None:
        """Load the key as `load` does."""


class Keyring:
    """The accepted keys. Lookup takes constant time."""

    def __init__(
        self,
        configured_secrets: Iterable[str],
        issued: IssuedKeySource | None = None,
        *,
        publishers: Iterable[str] = (),
        console_secrets: Iterable[str] = (),
    ) -> None:
        """Create a keyring.

        `configured_secrets` are the keys of SVC_API_KEYS, `publishers` the keys of SVC_REGISTRY_KEYS, and
        `console_secrets` the keys of the links that `svc up` prints.
        """
        self._issued = issued
        self._keys: dict[bytes, ApiKey] = {}
        self._ephemeral_keys: dict[bytes, EphemeralKey] = {}
        self._configured_secrets: dict[bytes, str] = {}
        self._configured_parents: dict[str, tuple[bytes, bytes]] | None = None
        """Digest and signing key of each configured key, by reference. None until an ephemeral key needs them."""
        self._stretch_callbacks: list[Callable[[], None]] = []
        self._add(CONFIGURED_KEYS_VARIABLE, configured_secrets, CONFIGURED_SCOPES)
        self._add("SVC_REGISTRY_KEYS", publishers, PUBLISHER_SCOPES)
        self._add("console", console_secrets, CONSOLE_SCOPES)

    def _add(self, variable_name: str, configured_secrets: Iterable[str], scopes: frozenset[str]) -> None:
        """Add secrets. A secret in both lists has the scopes of both."""
        for number, secret in enumerate(configured_secrets, 1):
            digest = hash_secret(secret)
            existing = self._keys.get(digest)
            self._configured_secrets[digest] = secret
            self._keys[digest] = ApiKey(
                id=f"env-{digest.hex()[:12]}",
                name=f"{variable_name} #{number}",
                scopes=scopes if existing is None else scopes | existing.scopes,
            )

    def configured_keys(self) -> list[ApiKey]:
        """Return the keys of SVC_API_KEYS, in their order."""
        return [key for key in self._keys.values() if key.name.startswith(f"{CONFIGURED_KEYS_VARIABLE} #")]

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
        if key is None and secret.startswith(EPHEMERAL_KEY_PREFIX):
            key = self._lookup_ephemeral(secret)
        elif key is None and secret.startswith(SESSION_PREFIX):
            key = self._lookup_session(secret)
        if key is True:
            return None
        if not key:
            raise AuthenticationFailed(INVALID_KEY_MESSAGE)
        if key.expires <= time.time():
            raise AuthenticationFailed(_expired_message(key))
        return key

    def _lookup_ephemeral(self, token: str) -> ApiKey | bool:
        """Return an ephemeral key. True means that its parent is not cached. Raises AuthenticationFailed."""
        reference = find_parent_reference(token)
        if reference is None:
            raise AuthenticationFailed(INVALID_EPHEMERAL_KEY_MESSAGE)
        digest = hash_secret(token)
        cached = self._ephemeral_keys.get(digest)
        if cached is not None and self.is_current(cached.parent_digest, cached.parent):
            return cached
        parents = self._find_parents(reference)
        if parents is None:
            return True
        for parent_digest, parent, signing_key in parents:
            claims = verify_token(token, signing_key)
            if claims is not None:
                key = self._ephemeral_keys[digest] = build_ephemeral_key(claims, parent, parent_digest)
                if len(self._ephemeral_keys) > MAX_CACHED_EPHEMERAL_KEYS:
                    del self._ephemeral_keys[next(iter(self._ephemeral_keys))]
                return key
        raise AuthenticationFailed(INVALID_EPHEMERAL_KEY_MESSAGE)

    def _lookup_session(self, token: str) -> ApiKey | bool:
        """Return the key that logged in. True means that it is not cached. Raises AuthenticationFailed."""
        reference = find_session_key_reference(token)
        parents = [] if reference is None else self._find_parents(reference)
        if parents is None:
            return True
        for _, key, signing_key in parents[:1]:  # the current secret: a rotation ends the sessions of the old one
            expires_at = verify_session(token, signing_key)
            if expires_at is not None and expires_at > _clock():
                return key
        raise AuthenticationFailed(INVALID_SESSION_MESSAGE)

    def _find_parents(self, reference: str) -> list[tuple[bytes, ApiKey, bytes]] | None:
        """Return digest, key and signing key of each possible parent, or None if they are not in memory.

        The current secret of a rotated key comes first.
        """
        if not reference.startswith(ISSUED_PARENT_PREFIX):
            if self._configured_parents is None:
                return None
            found = self._configured_parents.get(reference)
            return [] if found is None else [(found[0], self._keys[found[0]], found[1])]
        issued = [] if self._issued is None else self._issued.find_by_id(reference)
        if issued is None:
            return None
        return [(digest, parent, derive_signing_key(digest)) for digest, parent in issued]

    def is_current(self, digest: bytes, key: ApiKey) -> bool:
        """Return whether the key that was found by this digest is unchanged and not expired."""
        if isinstance(key, EphemeralKey):
            is_known = self._ephemeral_keys.get(digest) is key
            return is_known and _clock() < key.expires and self.is_current(key.parent_digest, key.parent)
        current_key: ApiKey | bool | None = self._keys.get(digest)
        if current_key is None and self._issued is not None:
            current_key = self._issued.get(digest)
        return current_key is key and (key.expires == math.inf or _clock() < key.expires)

    def load(self, secret: str, on_loaded: Callable[[], None]) -> None:
        """Load a key, then call `on_loaded`. If `lookup_cached` still returns None, the database failed."""
        reference = _find_reference(secret)
        if reference is not None and not reference.startswith(ISSUED_PARENT_PREFIX):
            self._stretch_configured(on_loaded)
        elif self._issued is None:
            return
        elif reference is not None:
            self._issued.load_by_id(reference, on_loaded)
        else:
            self._issued.load(hash_secret(secret), on_loaded)

    async def make_ephemeral_token(self, parent_secret: str, parent: ApiKey, claims: EphemeralClaims) -> str:
        """Return the token of an ephemeral key with these claims. It can be too long: see `encode_token`.

        `parent_secret` is the secret of the parent, or the token of its session.
        """
        return encode_token(*await self._signing_key(parent_secret, parent), claims)

    async def make_session(self, secret: str, key: ApiKey) -> str:
        """Return the token of a new session of an authenticated key."""
        expires_at = int(min(_clock() + SESSION_SECONDS, key.expires))
        return encode_session(*await self._signing_key(secret, key), expires_at)

    async def _signing_key(self, secret: str, key: ApiKey) -> tuple[str, bytes]:
        """Return the reference and the signing key of a key, by its secret or by the token of its session."""
        session_reference = _find_reference(secret) if secret.startswith(SESSION_PREFIX) else None
        if session_reference is not None:
            for _, _, signing_key in (self._find_parents(session_reference) or ())[:1]:
                if verify_session(secret, signing_key) is not None:
                    return session_reference, signing_key
            raise keys_unavailable_error()
        digest = hash_secret(secret)
        if digest not in self._keys:
            return key.id, derive_signing_key(digest)
        if self._configured_parents is None:
            stretched = asyncio.Event()
            self._stretch_configured(stretched.set)
            try:
                await asyncio.wait_for(stretched.wait(), KEY_LOOKUP_TIMEOUT_SECONDS)
            except TimeoutError:
                raise keys_unavailable_error() from None
        for reference, (parent_digest, signing_key) in (self._configured_parents or {}).items():
            if parent_digest == digest:
                return reference, signing_key
        raise keys_unavailable_error()

    def _stretch_configured(self, on_done: Callable[[], None]) -> None:
        """Compute the signing keys of the configured keys in a thread, once, then call `on_done`."""
        loop = asyncio.get_running_loop()
        if self._configured_parents is not None:
            loop.call_soon(on_done)
            return
        self._stretch_callbacks.append(on_done)
        if len(self._stretch_callbacks) == 1:
            loop.run_in_executor(None, _stretch_secrets, self._configured_secrets).add_done_callback(self._on_stretched)

    def _on_stretched(self, future: asyncio.Future[dict[str, tuple[bytes, bytes]]]) -> None:
        if future.cancelled() or future.exception() is not None:
            log.error("the signing keys of ephemeral keys could not be computed: %r", future)
        else:
            self._configured_parents = future.result()
        callbacks, self._stretch_callbacks = self._stretch_callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:  # boundary: the other requests must be notified
                log.exception("error in a callback of a key lookup")

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


def _stretch_secrets(secrets_by_digest: dict[bytes, str]) -> dict[str, tuple[bytes, bytes]]:
    """Return digest and signing key of each configured key, by its reference. Runs in a thread."""
    parents = {}
    for digest, secret in secrets_by_digest.items():
        reference, signing_key = stretch_configured_secret(secret)
        parents[reference] = (digest, signing_key)
    return parents


def _find_reference(secret: str) -> str | None:
    """Return the reference of the key behind an ephemeral key or a session, or None."""
    if secret.startswith(SESSION_PREFIX):
        return find_session_key_reference(secret)
    return find_parent_reference(secret) if secret.startswith(EPHEMERAL_KEY_PREFIX) else None


def _expired_message(key: ApiKey) -> str:
    if isinstance(key, EphemeralKey):
        return "The ephemeral key has expired. Get another one from the application that made it."
    return f"The API key has expired. {NEW_KEY_HINT}"


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


def secret_from_request(method: str, headers: Mapping[str, str]) -> str | None:
    """Return the key of a request, else the token of its session cookie, or None.

    Raises PermissionDenied if a change with a session cookie has no CSRF token, and AuthenticationFailed for a key in a
    header that is not read.
    """
    secret = secret_from_headers(headers.get("authorization"), headers.get("x-api-key"))
    secret = secret or session_from_request(
        method, headers.get("cookie"), headers.get(CSRF_HEADER), headers.get("host")
    )
    if secret is None:
        check_other_key_headers(headers)
    return secret


def check_other_key_headers(names: Iterable[str]) -> None:
    """Raise AuthenticationFailed with the header of a request without a key that seems to have the key."""
    for name in names:
        if name in OTHER_KEY_HEADERS:
            raise AuthenticationFailed(f"{NO_KEY_MESSAGE} The header {name!r} is not read.")


def session_from_request(method: str, cookies: str | None, token: str | None, host: str | None) -> str | None:
    """Return the token of the session cookie, or None. Raises PermissionDenied as `secret_from_request` does."""
    session = session_from_cookies(cookies, host) if cookies else None
    if session is not None:
        check_csrf(session, method, token)
    return session
