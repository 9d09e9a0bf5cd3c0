"""Replaces stored references to items (`item_reference`) by the items. Runs in a database thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from svc.stores.database.base import Database
from svc.wire.stored_response import StoredItem

_REFERENCE_TYPE: Final = "item_reference"


class _TypedItem(msgspec.Struct):
    type: str | None = None


_ITEM_DECODER: Final = msgspec.json.Decoder(_TypedItem)


def is_reference(item: StoredItem) -> bool:
    """Return whether the item only refers to another one."""
    return _REFERENCE_TYPE in item.body and _ITEM_DECODER.decode(item.body).type == _REFERENCE_TYPE


def find_items(database: Database, key_id: str, item_ids: Sequence[str], now: float) -> dict[str, str]:
    """Return the JSON of the key's items with these ids, without references. Raises StoreUnavailable."""
    found = database.find_response_items(key_id, item_ids, now) if item_ids else []
    return {item.id: item.body for item in found if not is_reference(item)}


def resolve_references(
    database: Database, key_id: str, items: Iterable[StoredItem], now: float
) -> tuple[list[StoredItem], list[str]]:
    """Return the items with those that are referred to, and the ids that the key has not stored.

    References to unknown items stay as they are. Raises StoreUnavailable.
    """
    items = list(items)
    ids = list(dict.fromkeys(item.id for item in items if is_reference(item)))
    if not ids:
        return items, []
    found = find_items(database, key_id, ids, now)
    resolved = [
        StoredItem(item.id, found[item.id], item.is_input) if is_reference(item) and item.id in found else item
        for item in items
    ]
    return resolved, [item_id for item_id in ids if item_id not in found]
