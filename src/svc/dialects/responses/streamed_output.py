"""Collects the output items of a native stream, which only its last event repeats, for a stream that breaks before it.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.message_schema import ABSENT
from svc.dialects.responses.native_schema import NativeEvent
from svc.dialects.responses.output_items import refusal_part, summary_part, text_part
from svc.dialects.validation import decode_upstream_json, decode_upstream_object

MAX_COLLECTED_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of the items of one stream. Later items and texts are left out."""
ITEM_OVERHEAD_BYTES: Final = 512
"""Counted for each item and each text, because an object without content occupies memory as well."""
_ARGUMENT_FIELDS: Final = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
"""The field of a call that each delta event continues."""
_PART_DELTAS: Final = frozenset(
    (
        "response.output_text.delta",
        "response.refusal.delta",
        "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta",
    )
)
_OPEN_ITEM_TYPES: Final = ("message", "reasoning", "function_call", "custom_tool_call")
"""The items whose content consists of deltas. Others have no content before their end."""
_TEXT_DECODER: Final[msgspec.json.Decoder[str]] = msgspec.json.Decoder(str)


class _PartialItem:
    """An item that is not complete. `texts` has the JSON of its texts by delta event and part, without quotes."""

    __slots__ = ("item", "texts")

    def __init__(self, item: bytes) -> None:
        self.item = item
        self.texts: dict[tuple[str, int], bytearray] = {}


class StreamedOutput:
    """The items that a stream has sent so far."""

    __slots__ = ("_collected_bytes", "_done", "_open")

    def __init__(self) -> None:
        self._done: dict[int, bytes] = {}
        self._open: dict[int, _PartialItem] = {}
        self._collected_bytes = 0

    def add_event(self, event: NativeEvent) -> None:
        """Add an event with an item or a delta. Other events change nothing."""
        if event.delta is not ABSENT:
            self._add_delta(event)
        elif event.item is not ABSENT and event.type.startswith("response.output_item."):
            self._add_item(event)

    def _add_item(self, event: NativeEvent) -> None:
        index, item = _to_index(event.output_index), bytes(event.item)
        if not self._count(len(item) + ITEM_OVERHEAD_BYTES):
            return
        if event.type == "response.output_item.done":
            self._done[index] = item
            self._open.pop(index, None)
        else:
            self._open[index] = _PartialItem(item)

    def _add_delta(self, event: NativeEvent) -> None:
        open_item = self._open.get(_to_index(event.output_index))
        delta = bytes(event.delta)
        is_known = event.type in _PART_DELTAS or event.type in _ARGUMENT_FIELDS
        if open_item is None or not is_known or not delta.startswith(b'"'):
            return
        place = (event.type, _to_index(event.content_index or event.summary_index))
        text = open_item.texts.get(place)
        if not self._count(len(delta) + (ITEM_OVERHEAD_BYTES if text is None else 0)):
            return
        if text is None:
            text = open_item.texts[place] = bytearray()
        text += delta[1:-1]

    def _count(self, size: int) -> bool:
        """Count bytes. Returns whether there is room for them."""
        self._collected_bytes += size
        return self._collected_bytes <= MAX_COLLECTED_BYTES

    def list_items(self) -> list[Any]:
        """Return the items in their order. Those that are not complete have the text so far, and are `incomplete`.

        Raises ProviderFailed if the upstream's items are malformed.
        """
        items: dict[int, Any] = {index: msgspec.Raw(item) for index, item in self._done.items()}
        for index, open_item in self._open.items():
            item = decode_upstream_object(open_item.item)
            if item.get("type") in _OPEN_ITEM_TYPES:
                items[index] = _complete_open_item(item, open_item)
        return [items[index] for index in sorted(items)]


def _complete_open_item(item: dict[str, Any], open_item: _PartialItem) -> dict[str, Any]:
    if "status" in item:
        item["status"] = "incomplete"
    parts: dict[str, list[dict[str, Any]]] = {}
    for event_type, number in sorted(open_item.texts):
        raw = b'"' + bytes(open_item.texts[event_type, number]) + b'"'
        text = decode_upstream_json(_TEXT_DECODER, raw)
        if event_type in _ARGUMENT_FIELDS:
            item[_ARGUMENT_FIELDS[event_type]] = text
        elif event_type == "response.reasoning_summary_text.delta":
            parts.setdefault("summary", []).append(summary_part(text))
        elif event_type == "response.reasoning_text.delta":
            parts.setdefault("content", []).append({"type": "reasoning_text", "text": text})
        else:
            is_refusal = event_type == "response.refusal.delta"
            parts.setdefault("content", []).append(refusal_part(text) if is_refusal else text_part(text))
    return item | parts


def _to_index(value: Any) -> int:
    """Return an index of an event, or 0 if it has none."""
    return value if type(value) is int else 0
