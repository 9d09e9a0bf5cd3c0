"""The contract of stored responses, with every kind of database."""

from __future__ import annotations

import math

import msgspec
import pytest

from svc.stores.database.base import Database
from svc.stores.database.response_rows import MIN_ID_RETENTION_SECONDS
from svc.wire.stored_response import StoredItem, StoredResponse

NOW = 1_000_000.0


def make(
    number: int, previous: int | None = None, *, key: str = "k1", items: int = 1, expires: float = 100
) -> StoredResponse:
    return StoredResponse(
        id=f"resp_{number}",
        key_id=key,
        created_at=NOW,
        expires_at=NOW + expires,
        previous_id=None if previous is None else f"resp_{previous}",
        provider="groq",
        account=2,
        is_native=False,
        body='{"id":"ü ? %s"}',
        items=[
            *(StoredItem(f"in_{number}_{index}", f'{{"in":"{number}"}}', True) for index in range(items)),
            StoredItem(f"out_{number}", f'{{"out":{number}}}', False),
        ],
    )


def test_response_account_name_is_stored_and_empty_by_default(database: Database) -> None:
    database.put_response(make(1))
    database.put_response(msgspec.structs.replace(make(2), account_name="0123456789ab"))
    found = [database.get_response("k1", id, NOW) for id in ("resp_1", "resp_2")]
    assert [response.account_name for response in found if response is not None] == ["", "0123456789ab"]


def test_response_put_returns_by_key_and_id(database: Database) -> None:
    database.put_response(make(1))
    found = database.get_response("k1", "resp_1", NOW)
    assert found is not None
    assert (found.provider, found.account, found.is_native, found.body) == ("groq", 2, False, '{"id":"ü ? %s"}')
    assert [item.id for item in database.list_response_items("k1", "resp_1")] == ["in_1_0", "out_1"]
    assert database.get_response("k2", "resp_1", NOW) is None
    assert database.get_response("k1", "resp_2", NOW) is None
    assert database.get_response("k1", "resp_1", NOW + 100) is None


def test_response_ids_of_two_keys_are_separate(database: Database) -> None:
    database.put_response(make(1))
    database.put_response(make(1, key="k2", items=2))
    assert len(database.list_response_items("k1", "resp_1")) == 2
    assert len(database.list_response_items("k2", "resp_1")) == 3
    assert database.delete_response("k2", "resp_1", NOW)
    assert database.get_response("k1", "resp_1", NOW) is not None


def test_response_put_twice_replaces_its_items(database: Database) -> None:
    database.put_response(make(1, items=3))
    database.put_response(make(1, items=1))
    assert len(database.list_response_items("k1", "resp_1")) == 2


def test_response_with_many_items_is_stored_in_order(database: Database) -> None:
    database.put_response(make(1, items=1200))
    items = database.list_response_items("k1", "resp_1")
    assert [item.id for item in items[:-1]] == [f"in_1_{index}" for index in range(1200)]
    found = database.find_response_items("k1", [item.id for item in items], NOW)
    assert {item.id for item in found} == {item.id for item in items}


def test_conversation_is_listed_oldest_first(database: Database) -> None:
    for number in range(60):
        database.put_response(make(number, number - 1 if number else None))
    items = database.list_conversation("k1", "resp_59", NOW)
    assert items is not None
    assert [item.id for item in items] == [f"{kind}" for n in range(60) for kind in (f"in_{n}_0", f"out_{n}")]
    assert database.list_conversation("k2", "resp_59", NOW) is None


def test_conversation_keeps_earlier_responses_as_long_as_the_last(database: Database) -> None:
    database.put_response(make(1, expires=10))
    database.put_response(make(2, 1, expires=500))
    first = database.get_response("k1", "resp_1", NOW + 400)
    assert first is not None
    assert first.expires_at == NOW + 500
    database.put_response(make(3, 2, expires=math.inf))
    assert database.get_response("k1", "resp_1", NOW * 2) is not None


@pytest.mark.parametrize("middle", [1, 2])
def test_conversation_with_a_deleted_response_is_not_listed(database: Database, middle: int) -> None:
    for number, previous in ((1, None), (2, 1), (3, 2)):
        database.put_response(make(number, previous))
    assert database.delete_response("k1", f"resp_{middle}", NOW)
    assert not database.delete_response("k1", f"resp_{middle}", NOW)
    assert database.list_conversation("k1", "resp_3", NOW) is None
    assert database.list_response_items("k1", f"resp_{middle}") == []


def test_conversation_that_continues_itself_ends(database: Database) -> None:
    database.put_response(make(1, 1))
    assert database.list_conversation("k1", "resp_1", NOW) is None


def test_items_are_found_by_id_for_their_key_until_they_expire(database: Database) -> None:
    database.put_response(make(1))
    assert [item.body for item in database.find_response_items("k1", ["out_1", "other"], NOW)] == ['{"out":1}']
    assert database.find_response_items("k2", ["out_1"], NOW) == []
    assert database.find_response_items("k1", ["out_1"], NOW + 100) == []


def test_id_stays_known_after_its_response_is_deleted_until_it_expires(database: Database) -> None:
    database.put_response(make(1))
    assert database.has_stored_id(["other", "resp_1"])
    assert database.has_stored_id(["out_1"])
    assert not database.has_stored_id(["in_1_0", "other"])
    assert database.delete_response("k1", "resp_1", NOW)
    database.prune_responses(NOW + MIN_ID_RETENTION_SECONDS - 1)
    assert database.has_stored_id(["resp_1"])
    assert database.prune_responses(NOW + MIN_ID_RETENTION_SECONDS) == 2
    assert not database.has_stored_id(["resp_1", "out_1"])


def test_id_stays_known_while_its_response_is_kept(database: Database) -> None:
    database.put_response(make(1))
    database.put_response(make(2, 1, expires=MIN_ID_RETENTION_SECONDS * 2))
    assert database.prune_responses(NOW + MIN_ID_RETENTION_SECONDS) == 0
    assert database.has_stored_id(["resp_1"])


def test_missing_response_is_the_one_at_which_the_conversation_breaks(database: Database) -> None:
    for number, previous in ((1, None), (2, 1), (3, 2)):
        database.put_response(make(number, previous))
    assert database.find_missing_response("k1", "resp_3", NOW) is None
    assert database.find_missing_response("k2", "resp_3", NOW) == "resp_3"
    database.delete_response("k1", "resp_1", NOW)
    assert database.find_missing_response("k1", "resp_3", NOW) == "resp_1"


def test_prune_deletes_expired_responses_with_their_items(database: Database) -> None:
    database.put_response(make(1, expires=10))
    database.put_response(make(2, expires=20))
    assert database.prune_responses(NOW + 10) == 1
    assert database.list_response_items("k1", "resp_1") == []
    assert database.get_response("k1", "resp_2", NOW) is not None
    assert database.prune_responses(NOW + 10) == 0
