"""What providers fail with, for the log: each kind at most once in ten seconds, with how often it came meanwhile."""

from __future__ import annotations

import logging
from typing import Final

from svc.errors import InvalidRequest, ModelNotFound, ProviderFailed, SvcError

log = logging.getLogger("svc.gateway")

SECONDS: Final = 10.0
ALIKE: Final = 60
"""Characters of what a provider says by which two are of one kind: what follows may be another one each time."""
LONGEST: Final = 300
"""Characters of one line."""
MOST: Final = 1000
"""Kinds that are remembered."""


class Troubles:
    """Clients hear what concerns them; who runs this must know which provider fails, and with what."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, str], tuple[float, int]] = {}
        """When each kind was last said, and how often it has come since."""

    def tell(self, provider: str, error: SvcError, request_id: str, now: float) -> None:
        """`now` is loop time. What the client itself has asked wrongly is no trouble."""
        if isinstance(error, InvalidRequest | ModelNotFound):
            log.info("request %s: %s: %s", request_id, provider, _line(error.message))
            return
        reason = error.reason if isinstance(error, ProviderFailed) else ""
        text = _line(f"{error.message} ({reason})" if reason else error.message)
        kind = (provider, error.message[:ALIKE], reason)
        last, more = self._told.get(kind, (-SECONDS, 0))
        if now - last < SECONDS:
            self._told[kind] = (last, more + 1)
            return
        if len(self._told) >= MOST:
            self._told.clear()
        self._told[kind] = (now, 0)
        since = f"; {more} more like it since the last time" if more else ""
        log.warning("%s: %s [request %s%s]", provider, text, request_id, since)


def _line(text: str) -> str:
    """One, of what a provider says: it could look like lines of ours, or have a terminal do things."""
    return "".join([each if each.isprintable() else " " for each in text[:LONGEST]])
