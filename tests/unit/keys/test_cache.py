"""Issued keys in memory, beside changes of them that are noticed in the same moment."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from svc.errors import AuthenticationFailed
from svc.keys.cache import IssuedKeyCache
from svc.keys.lifecycle import NewKey, create_key, revoke_key
from svc.security import Keyring
from svc.stores.database.base import Database
from svc.stores.database.factory import open_state_database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with contextlib.closing(open_state_database({}, tmp_path)) as found:
        found.migrate()
        yield found


@pytest.fixture
async def issued(tmp_path: Path) -> AsyncIterator[IssuedKeyCache]:
    """Asks when it is told to: nothing looks for changes in the background."""
    found = IssuedKeyCache(open_state_database({}, tmp_path))
    yield found
    await found.close()


async def both_at_once(issued: IssuedKeyCache) -> None:
    """The answer to who asks already and the news of changes reach the event loop in one turn, in this order."""
    looking = asyncio.create_task(issued._poll_once())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(0.3)  # both questions are answered before the loop goes on
    await looking


async def test_a_new_key_is_known_while_the_news_of_it_comes_in(database: Database, issued: IssuedKeyCache) -> None:
    keyring = Keyring([], issued)
    old = create_key(database, NewKey(name="old"))
    await issued._poll_once()
    await keyring.authenticate(old.key)
    made = create_key(database, NewKey(name="new"))
    asking = asyncio.create_task(keyring.authenticate(made.key))
    await asyncio.sleep(0)
    await both_at_once(issued)
    assert (await asking).id == made.id


async def test_an_unknown_key_is_refused_while_news_come_in(database: Database, issued: IssuedKeyCache) -> None:
    keyring = Keyring([], issued)
    old = create_key(database, NewKey(name="old"))
    await issued._poll_once()
    await keyring.authenticate(old.key)
    create_key(database, NewKey(name="another"))
    asking = asyncio.create_task(keyring.authenticate("svc_sk_never"))
    await asyncio.sleep(0)
    await both_at_once(issued)
    with pytest.raises(AuthenticationFailed):
        await asking


async def test_a_revocation_right_after_the_first_look_up_is_noticed(
    database: Database, issued: IssuedKeyCache
) -> None:
    made = create_key(database, NewKey(name="short"))
    await issued._poll_once()
    keyring = Keyring([], issued)
    asking = asyncio.create_task(keyring.authenticate(made.key))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(0.3)  # the key is read, and not yet kept
    revoke_key(database, made.id)
    looking = asyncio.create_task(issued._poll_once())
    await asyncio.sleep(0)
    time.sleep(0.3)  # the change is counted, and the key still not kept
    await asyncio.gather(asking, looking)
    with pytest.raises(AuthenticationFailed):
        await keyring.authenticate(made.key)
