"""Checks whether the key of a live session is still valid. The keyring does the I/O."""

from __future__ import annotations

from svc.errors import AuthenticationFailed
from svc.security import Keyring
from svc.wire.key import ApiKey


class SessionKeyMonitor:
    """Monitors the key of one session. The keyring sees a change of the key within 1 s."""

    def __init__(self, keyring: Keyring, secret: str, key: ApiKey) -> None:
        self._keyring, self._secret = keyring, secret
        self._is_loading = False
        self.key = key
        """The key with its current limits and models."""

    def is_valid(self, model: str | None) -> bool:
        """Return False if the key is revoked, expired, or may no longer use speech or this model.

        While the database is unavailable, the last known state applies.
        """
        try:
            current_key = self._keyring.lookup_cached(self._secret)
        except AuthenticationFailed:
            return False
        if current_key is None:  # the key has changed: a later tick sees the new state
            self._reload_key()
            return True
        self.key = current_key
        return "speech" in current_key.scopes and (model is None or current_key.may_use(model))

    def _reload_key(self) -> None:
        if not self._is_loading:
            self._is_loading = True
            self._keyring.load(self._secret, self._on_loaded)

    def _on_loaded(self) -> None:
        self._is_loading = False
