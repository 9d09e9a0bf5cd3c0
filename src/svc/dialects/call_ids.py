"""Shortens the ids of tool calls for an upstream that accepts only 9 letters or digits, as Mistral does.

A client sends the ids of earlier calls back, including those of other providers. Equal ids stay equal, so that each
result still belongs to its call.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

_SHORT_ID: Final = re.compile(r"[a-zA-Z0-9]{9}")


def shorten_call_ids(body: dict[str, Any]) -> None:
    """Replace the ids of tool calls and of their results in the messages of a chat request."""
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            _shorten_field(call, "id")
        _shorten_field(message, "tool_call_id")


def _shorten_field(owner: Any, name: str) -> None:
    call_id = owner.get(name) if isinstance(owner, dict) else None
    if isinstance(call_id, str) and _SHORT_ID.fullmatch(call_id) is None:
        owner[name] = hashlib.sha256(call_id.encode()).hexdigest()[:9]
