"""Chunks put right: role once, a tool's id and name once, an integer index always, one id, four finish reasons.

What has been sent of a choice is kept in `Choice`. `is_clean` looks at a typed chunk without changing anything; what is
not clean goes through `mend` as a dictionary, so that fields which nobody here knows ride along.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET

from svc.dialects.openai.answer import TEXT_FIELDS, split_content
from svc.dialects.openai.shapes import ChunkChoice, PassedReason, passed_reason
from svc.dialects.values import arguments_text, new_id, text_or
from svc.errors import ProviderFailed

MAX_CALLS: Final = 4096
"""Tool calls of one answer: each costs memory until the stream ends."""


class Call:
    """What the client has of one tool call."""

    __slots__ = ("id", "named", "type")

    def __init__(self) -> None:
        self.id = ""
        self.named = False
        self.type = "function"


class Choice:
    """What the client has of one choice."""

    __slots__ = ("calls", "finish", "ids", "last", "places")

    def __init__(self) -> None:
        self.finish: PassedReason | None = None
        self.calls: dict[int, Call] = {}
        self.ids: dict[str, int] = {}
        """The upstream's id of a call -> our index. Where an id comes twice, the first index counts."""
        self.places: dict[int, int] = {}
        """The upstream's index -> ours, where it uses one index for several calls."""
        self.last = 0

    def place(self, index: Any, call_id: str) -> int:
        """Our index of a piece of a tool call, whatever the upstream says of it."""
        if isinstance(index, str) and index.isdecimal() and len(index) < 10:
            index = int(index)
        place = self._place_of(index, call_id) if type(index) is int and index >= 0 else self._place_by_id(call_id)
        if call_id:
            self.ids.setdefault(call_id, place)
        self.last = place
        return place

    def _place_of(self, index: int, call_id: str) -> int:
        place = self.places.get(index, index)
        there = self.calls.get(place)
        if there is not None and call_id and there.id != call_id:
            place = self._place_by_id(call_id)  # another call under the index of an earlier one
        self.places[index] = place
        return place

    def _place_by_id(self, call_id: str) -> int:
        if not call_id:
            return self.last
        place = self.ids.get(call_id)
        return self._next() if place is None else place

    def _next(self) -> int:
        return max(self.calls, default=-1) + 1

    def is_clean(self, choice: ChunkChoice) -> bool:
        """Nothing comes twice, and nothing after the end."""
        return self.finish is None and choice.delta.role is UNSET and calls_clean(choice, self.calls)

    def note(self, choice: ChunkChoice) -> None:
        """The client has been sent this."""
        if choice.delta.tool_calls is not UNSET:
            for piece in choice.delta.tool_calls:
                call = self.calls.setdefault(piece.index, Call())
                if piece.id:
                    call.id = piece.id
                    self.ids.setdefault(piece.id, piece.index)
                call.type = piece.type or call.type
                if piece.function is not UNSET and piece.function.name:
                    call.named = True
                if piece.custom is not UNSET and piece.custom.name:
                    call.named = True
                self.last = piece.index
            if len(self.calls) > MAX_CALLS:
                raise too_many_calls()
        self.finish = choice.finish_reason

    def mend(self, choice: dict[str, Any], *, first: bool) -> dict[str, Any] | None:
        """The choice of one chunk without what the client has already; None when nothing is left."""
        if self.finish is not None:
            return None
        delta = choice.get("delta")
        delta = dict(delta) if isinstance(delta, dict) else {}
        delta.pop("role", None)
        if first:
            delta = {"role": "assistant", **delta}
        if "content" in delta:
            delta |= split_content(delta["content"])
        if delta.get("reasoning_content", UNSET) is not None and not isinstance(
            delta.get("reasoning_content", ""), str
        ):
            del delta["reasoning_content"]
        calls = delta.pop("tool_calls", None)
        if isinstance(calls, list) and calls:
            delta["tool_calls"] = list(self._mend_calls(calls))
        reason = choice.get("finish_reason")
        return {**choice, "delta": delta, "finish_reason": passed_reason(reason) if reason else None}

    def _mend_calls(self, calls: list[Any]) -> Iterator[dict[str, Any]]:
        for piece in calls:
            if not isinstance(piece, dict):
                raise ProviderFailed("The provider sent a tool call that is not an object.")
            place = self.place(piece.get("index"), text_or(piece.get("id"), ""))
            call = self.calls.setdefault(place, Call())
            if len(self.calls) > MAX_CALLS:
                raise too_many_calls()
            yield _mend_call(piece, place, call)


def _mend_call(piece: dict[str, Any], place: int, call: Call) -> dict[str, Any]:
    mended = {name: value for name, value in piece.items() if value is not None} | {"index": place}
    held = next((name for name in TEXT_FIELDS if isinstance(piece.get(name), dict)), "")
    if call.id:
        mended.pop("id", None)
        mended.pop("type", None)
    else:
        call.id = mended["id"] = text_or(piece.get("id"), "") or new_id("call_")
        call.type = mended["type"] = text_or(piece.get("type"), held or "function")
    if held:
        mended[held] = _mend_payload(piece[held], TEXT_FIELDS[held], call)
    elif call.type == "function":
        mended["function"] = {}  # clients look into it
    return mended


def _mend_payload(payload: dict[str, Any], field: str, call: Call) -> dict[str, Any]:
    mended = {**payload}
    if call.named or not text_or(payload.get("name"), ""):
        mended.pop("name", None)
    else:
        call.named = True
    if field in mended:
        mended[field] = arguments_text(mended[field])
    return mended


def too_many_calls() -> ProviderFailed:
    """The error for a stream of more than MAX_CALLS."""
    return ProviderFailed("The provider sent more tool calls than one answer may have.")


def calls_clean(choice: ChunkChoice, known: dict[int, Call]) -> bool:
    """Every tool call of the chunk has id and name when it is new, and neither when it is not."""
    pieces = choice.delta.tool_calls
    if pieces is UNSET:
        return True
    if len(pieces) > 1 and len({piece.index for piece in pieces}) < len(pieces):
        return False
    for piece in pieces:
        name = piece.function.name if piece.function is not UNSET else None
        if piece.custom is not UNSET:
            name = piece.custom.name
        given = bool(piece.id), bool(name)
        if piece.index not in known:
            if given != (True, True):
                return False
        elif piece.id not in (UNSET, None) or name not in (UNSET, None):
            return False
    return True


def first_is_clean(choice: ChunkChoice) -> bool:
    """The first chunk of a choice says the role."""
    return choice.delta.role is not UNSET and calls_clean(choice, {})


def typed(choice: dict[str, Any]) -> ChunkChoice:
    """A mended choice, checked once more; raises ProviderFailed."""
    try:
        return msgspec.convert(choice, ChunkChoice)
    except (msgspec.ValidationError, RecursionError):
        raise ProviderFailed("The provider sent an event that was not understandable.") from None
