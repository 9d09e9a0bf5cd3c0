"""Whether the key of a live session still allows it. No I/O of its own: the keyring asks the database."""

from __future__ import annotations

from svc.errors import AuthenticationFailed
from svc.security import Keyring
from svc.wire.key import Key


class KeyWatch:
    """The key of one session. Ask `is_valid` at each tick: a change of the key is known to the keyring within 1 s."""

    def __init__(self, keyring: Keyring, secret: str, key: Key) -> None:
        self._keyring, self._secret = keyring, secret
        self._loading = False
        self.key = key
        """With the last changes of its limits and models."""

    def is_valid(self, model: str | None) -> bool:
        """Return False if the key is revoked, expired, or may no longer use speech or this model.

        While the database does not answer, the last known state holds.
        """
        try:
            found = self._keyring.look(self._secret)
        except AuthenticationFailed:
            return False
        if found is None:  # the key has changed: the answer is there at one of the next ticks
            self._load()
            return True
        self.key = found
        return "speech" in found.scopes and (model is None or found.may_use(model))

    def _load(self) -> None:
        if not self._loading:
            self._loading = True
            self._keyring.load(self._secret, self._on_loaded)

    def _on_loaded(self) -> None:
        self._loading = False
