"""The cache of issued keys, with changes that arrive during a lookup."""

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
    """A cache without a background poll. Tests call `_poll_once`."""
    found = IssuedKeyCache(open_state_database({}, tmp_path))
    yield found
    await found.close()


async def finish_lookup_and_poll(issued: IssuedKeyCache) -> None:
    """Deliver the result of a running lookup, then that of a poll, in the same event loop iteration."""
    poll = asyncio.create_task(issued._poll_once())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(0.3)  # both queries finish before the loop continues
    await poll


async def test_issued_key_cache_new_key_during_poll_is_accepted(database: Database, issued: IssuedKeyCache) -> None:
    keyring = Keyring([], issued)
    old = create_key(database, NewKey(name="old"))
    await issued._poll_once()
    await keyring.authenticate(old.key)
    made = create_key(database, NewKey(name="new"))
    lookup = asyncio.create_task(keyring.authenticate(made.key))
    await asyncio.sleep(0)
    await finish_lookup_and_poll(issued)
    assert (await lookup).id == made.id


async def test_issued_key_cache_unknown_key_during_poll_is_rejected(database: Database, issued: IssuedKeyCache) -> None:
    keyring = Keyring([], issued)
    old = create_key(database, NewKey(name="old"))
    await issued._poll_once()
    await keyring.authenticate(old.key)
    create_key(database, NewKey(name="another"))
    lookup = asyncio.create_task(keyring.authenticate("svc_sk_never"))
    await asyncio.sleep(0)
    await finish_lookup_and_poll(issued)
    with pytest.raises(AuthenticationFailed):
        await lookup


async def test_issued_key_cache_revocation_after_first_lookup_is_noticed(
    database: Database, issued: IssuedKeyCache
) -> None:
    made = create_key(database, NewKey(name="short"))
    await issued._poll_once()
    keyring = Keyring([], issued)
    lookup = asyncio.create_task(keyring.authenticate(made.key))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(0.3)  # the key is read but not yet cached
    revoke_key(database, made.id)
    poll = asyncio.create_task(issued._poll_once())
    await asyncio.sleep(0)
    time.sleep(0.3)  # the change is counted, and the key is still not cached
    await asyncio.gather(lookup, poll)
    with pytest.raises(AuthenticationFailed):
        await keyring.authenticate(made.key)
