"""Stored responses: what a request refers to, and the items that its response leaves behind."""

from __future__ import annotations

from typing import Any

import msgspec

from svc.dialects.coerce import new_id, nonempty_text_or
from svc.dialects.validation import decode_client_object
from svc.errors import InvalidRequest
from svc.wire.stored_response import EarlierItems, ResponseParts, StoredItem

_ITEM_ID_PREFIXES = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "reasoning": "rs_",
}


def describe_response(request: bytes, response: bytes) -> ResponseParts:
    """Return the parts to store. Both are valid JSON objects."""
    body: dict[str, Any] = msgspec.json.decode(response)
    items = [_store_item(item, is_input=True) for item in list_input(decode_client_object(request).get("input"))]
    output = body.get("output")
    items += [_store_item(item, is_input=False) for item in output if isinstance(item, dict)] if output else []
    return ResponseParts(body["id"], response.decode(), items)


def list_input(value: str | list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Return `input` as a list of items. A text is a message of the user."""
    if isinstance(value, str):
        return [_message(value)]
    return [_message(item["content"], item) if _is_easy_message(item) else item for item in value or []]


def _is_easy_message(item: dict[str, Any]) -> bool:
    return (
        item.get("type") in (None, "message")
        and item.get("role") != "assistant"
        and isinstance(item.get("content"), str)
    )


def _message(text: str, item: dict[str, Any] | None = None) -> dict[str, Any]:
    base = {"type": "message", "role": "user", **(item or {})}
    return {**base, "content": [{"type": "input_text", "text": text}]}


def _store_item(item: dict[str, Any], *, is_input: bool) -> StoredItem:
    item_type = nonempty_text_or(item.get("type"), "message")
    item_id = nonempty_text_or(item.get("id"), "") or new_id(_ITEM_ID_PREFIXES.get(item_type, "item_"))
    return StoredItem(item_id, msgspec.json.encode({**item, "id": item_id}).decode(), is_input)


def insert_earlier_items(fields: dict[str, Any], earlier: EarlierItems) -> dict[str, Any]:
    """Return the fields of a request with the stored items in its input, in place of what refers to them."""
    items = [msgspec.json.decode(item) for item in earlier.conversation]
    for index, item in enumerate(list_input(fields.get("input"))):
        if item.get("type") != "item_reference":
            items.append(item)
        elif isinstance(item.get("id"), str) and item["id"] in earlier.by_id:
            items.append(msgspec.json.decode(earlier.by_id[item["id"]]))
        else:
            raise InvalidRequest(f"`input[{index}].id` is required.", param=f"input[{index}].id")
    return {name: value for name, value in fields.items() if name != "previous_response_id"} | {"input": items}
