"""References to items in rows of older versions, which stored them as they were."""

from __future__ import annotations

from pathlib import Path

from svc.gateway.stored_responses.store import find_state
from svc.stores.database.sqlite import SqliteDatabase
from svc.wire.stored_response import StateReference, StoredItem, StoredResponse

KEY_ID = "key_a"
MESSAGE = '{"type":"message","id":"msg_a"}'
REFERENCE = '{"type":"item_reference","id":"msg_a"}'


def response(id: str, item: StoredItem) -> StoredResponse:
    return StoredResponse(
        id=id,
        key_id=KEY_ID,
        created_at=0,
        expires_at=100,
        previous_id=None,
        provider="openai",
        account=0,
        is_native=False,
        body="{}",
        items=[item],
    )


def test_state_stored_reference_does_not_hide_the_item_with_its_id(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "svc.db")
    database.migrate()
    database.put_response(response("resp_a", StoredItem("msg_a", MESSAGE, is_input=False)))
    database.put_response(response("resp_b", StoredItem("msg_a", REFERENCE, is_input=True)))
    found = find_state(database, KEY_ID, StateReference(item_ids=("msg_a",)), now=1)
    assert found.items.by_id == {"msg_a": MESSAGE}
    continued = find_state(database, KEY_ID, StateReference("resp_b"), now=1)
    assert (continued.items.conversation, continued.is_complete) == ([MESSAGE], True)
    database.close()
