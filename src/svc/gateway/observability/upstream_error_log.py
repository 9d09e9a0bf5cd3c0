"""What providers fail with, for the log: each kind at most once in ten seconds, with how often it came meanwhile."""

from __future__ import annotations

import logging
from typing import Final

from svc.errors import InvalidRequest, ModelNotFound, ProviderFailed, SvcError

log = logging.getLogger("svc.gateway")

REPEAT_INTERVAL_SECONDS: Final = 10.0
SIMILAR_MESSAGE_CHARS: Final = 60
"""Characters of what a provider says by which two are of one kind: what follows may be another one each time."""
MAX_LOG_LINE_CHARS: Final = 300
"""Characters of one line."""
MAX_REMEMBERED_ERRORS: Final = 1000
"""Kinds that are remembered."""


class UpstreamErrorLog:
    """Clients hear what concerns them; who runs this must know which provider fails, and with what."""

    def __init__(self) -> None:
        self._last_logged: dict[tuple[str, str, str], tuple[float, int]] = {}
        """When each kind was last said, and how often it has come since."""

    def log_error(self, provider: str, error: SvcError, request_id: str, now: float) -> None:
        """`now` is loop time. What the client itself has asked wrongly is no trouble."""
        if isinstance(error, InvalidRequest | ModelNotFound):
            log.info("request %s: %s: %s", request_id, provider, _to_single_line(error.message))
            return
        reason = error.reason if isinstance(error, ProviderFailed) else ""
        text = _to_single_line(f"{error.message} ({reason})" if reason else error.message)
        kind = (provider, error.message[:SIMILAR_MESSAGE_CHARS], reason)
        last, suppressed = self._last_logged.get(kind, (-REPEAT_INTERVAL_SECONDS, 0))
        if now - last < REPEAT_INTERVAL_SECONDS:
            self._last_logged[kind] = (last, suppressed + 1)
            return
        if len(self._last_logged) >= MAX_REMEMBERED_ERRORS:
            self._last_logged.clear()
        self._last_logged[kind] = (now, 0)
        suffix = f"; {suppressed} more like it since the last time" if suppressed else ""
        log.warning("%s: %s [request %s%s]", provider, text, request_id, suffix)


def _to_single_line(text: str) -> str:
    """One, of what a provider says: it could look like lines of ours, or have a terminal do things."""
    return "".join([each if each.isprintable() else " " for each in text[:MAX_LOG_LINE_CHARS]])
