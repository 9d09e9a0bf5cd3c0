"""Logs errors of providers: each kind at most once in ten seconds, with the number of suppressed repetitions."""

from __future__ import annotations

import logging
from typing import Final

from svc.errors import InvalidRequest, ModelNotFound, SvcError

log = logging.getLogger("svc.gateway")

REPEAT_INTERVAL_SECONDS: Final = 10.0
SIMILAR_MESSAGE_CHARS: Final = 60
"""Characters of a message that determine its kind. The rest may differ each time."""
MAX_LOG_LINE_CHARS: Final = 300
"""The maximum number of characters in a log line."""
MAX_REMEMBERED_ERRORS: Final = 1000
"""The maximum number of kinds that are kept."""


class UpstreamErrorLog:
    """Logs which provider fails and why, for the operator of the gateway."""

    def __init__(self) -> None:
        self._last_logged: dict[tuple[str, str, str], tuple[float, int]] = {}
        """The time of the last log line of each kind, and the number of repetitions since then."""

    def log_error(self, provider: str, error: SvcError, request_id: str, now: float) -> None:
        """Log an error. `now` is loop time. An invalid request has level INFO, and repetitions are not suppressed.

        If only the log has the reason of an error, its level is WARNING.
        """
        reason = error.reason
        if isinstance(error, InvalidRequest | ModelNotFound) and not reason:
            log.info("request %s: %s: %s", request_id, provider, _to_single_line(error.message))
            return
        text = _to_single_line(f"{error.message} ({reason})" if reason else error.message)
        kind = (provider, error.message[:SIMILAR_MESSAGE_CHARS], reason)
        last, suppressed = self._last_logged.get(kind, (-REPEAT_INTERVAL_SECONDS, 0))
        if now - last < REPEAT_INTERVAL_SECONDS:
            self._last_logged[kind] = (last, suppressed + 1)
            return
        if len(self._last_logged) >= MAX_REMEMBERED_ERRORS:
            self._last_logged.clear()
        self._last_logged[kind] = (now, 0)
        suffix = f"; {suppressed} similar errors suppressed" if suppressed else ""
        log.warning("%s: %s [request %s%s]", provider, text, request_id, suffix)


def _to_single_line(text: str) -> str:
    """Replace unprintable characters. A provider's message must not imitate log lines or control a terminal."""
    return "".join([character if character.isprintable() else " " for character in text[:MAX_LOG_LINE_CHARS]])
