"""The keyring looks up ephemeral keys by their parents: in memory, in the database, and after a change."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from svc import security
from svc.ephemeral_tokens import EphemeralClaims
from svc.errors import AuthenticationFailed
from svc.keys import cache
from svc.keys.cache import IssuedKeyCache
from svc.keys.ephemeral import NewEphemeralKey, create_claims
from svc.keys.lifecycle import Change, MadeKey, NewKey, Rotation, create_key, revoke_key, rotate_key, update_key
from svc.security import Keyring
from svc.stores.database.base import Database
from svc.stores.database.factory import open_state_database
from svc.wire.key import EphemeralKey


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


async def make_token(keyring: Keyring, secret: str, **fields: object) -> str:
    parent = await keyring.authenticate(secret)
    return await keyring.make_ephemeral_token(secret, parent, create_claims(NewEphemeralKey(**fields), parent, 0))


async def test_keyring_ephemeral_key_of_an_unknown_parent_needs_one_lookup(
    database: Database, issued: IssuedKeyCache, tmp_path: Path
) -> None:
    made = create_key(database, NewKey(name="app"))
    keyring = Keyring([], issued)
    token = await make_token(keyring, made.key)
    async with _other_node(tmp_path) as (other, _):
        assert other.lookup_cached(token) is None
        key = await other.authenticate(token)
        assert (key.id, key.ephemeral_id) == (made.id, (await keyring.authenticate(token)).ephemeral_id)
        assert other.lookup_cached(token) is key


@contextlib.asynccontextmanager
async def _other_node(home: Path) -> AsyncIterator[tuple[Keyring, IssuedKeyCache]]:
    keys = IssuedKeyCache(open_state_database({}, home))
    try:
        yield Keyring([], keys), keys
    finally:
        await keys.close()


async def test_keyring_ephemeral_key_of_a_polled_parent_needs_no_lookup(
    database: Database, issued: IssuedKeyCache, tmp_path: Path
) -> None:
    async with _other_node(tmp_path) as (other, keys):
        await keys._poll_once()
        made = create_key(database, NewKey(name="app"))
        token = await make_token(Keyring([], issued), made.key)
        await keys._poll_once()
        assert other.lookup_cached(token) is not None
        revoke_key(database, made.id)
        await keys._poll_once()
        with pytest.raises(AuthenticationFailed):
            other.lookup_cached(token)


async def test_keyring_ephemeral_key_is_current_until_its_parent_changes(
    database: Database, issued: IssuedKeyCache
) -> None:
    made = create_key(database, NewKey(name="app", models=("a", "b")))
    keyring = Keyring([], issued)
    await issued._poll_once()
    token = await make_token(keyring, made.key)
    key, digest = await keyring.authenticate(token), security.hash_secret(token)
    assert keyring.is_current(digest, key)
    assert not keyring.is_current(security.hash_secret("other"), key)
    update_key(database, made.id, Change(models=("a",)))
    await issued._poll_once()
    assert not keyring.is_current(digest, key)
    changed = await keyring.authenticate(token)
    assert changed.models == {"a"}
    assert keyring.is_current(digest, changed)


async def test_keyring_ephemeral_key_expires(database: Database, issued: IssuedKeyCache) -> None:
    made = create_key(database, NewKey(name="app"))
    keyring = Keyring([], issued)
    parent = await keyring.authenticate(made.key)
    now = int(time.time())
    tokens = [
        await keyring.make_ephemeral_token(made.key, parent, EphemeralClaims("ek_1", now, expires_at, ("chat",)))
        for expires_at in (now - 1, now + 2)
    ]
    with pytest.raises(AuthenticationFailed, match="has expired"):
        await keyring.authenticate(tokens[0])
    key, digest = await keyring.authenticate(tokens[1]), security.hash_secret(tokens[1])
    assert keyring.is_current(digest, key)
    await asyncio.sleep(now + 2.01 - time.time())
    assert not keyring.is_current(digest, key)


async def _rotate(database: Database, made: MadeKey, grace: float) -> MadeKey:
    return rotate_key(database, made.id, Rotation(grace=grace))


async def test_keyring_ephemeral_key_of_the_previous_secret_lasts_as_long_as_it(
    database: Database, issued: IssuedKeyCache, tmp_path: Path
) -> None:
    made = create_key(database, NewKey(name="app"))
    keyring = Keyring([], issued)
    old = await make_token(keyring, made.key)
    rotated = await _rotate(database, made, 1000)
    await issued._poll_once()
    new = await make_token(keyring, rotated.key)
    async with _other_node(tmp_path) as (other, _):
        expiries = [(await other.authenticate(token)).expires - time.time() for token in (old, new)]
        assert expiries == [pytest.approx(600, abs=5)] * 2
    await _rotate(database, made, 0)
    await issued._poll_once()
    for token in (old, new):
        with pytest.raises(AuthenticationFailed):
            await keyring.authenticate(token)


async def test_keyring_ephemeral_keys_are_cached_within_a_bound(
    database: Database, issued: IssuedKeyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "MAX_CACHED_EPHEMERAL_KEYS", 3)
    made = create_key(database, NewKey(name="app"))
    keyring = Keyring([], issued)
    tokens = [await make_token(keyring, made.key) for _ in range(6)]
    keys = [await keyring.authenticate(token) for token in tokens]
    assert len(keyring._ephemeral_keys) == 3
    assert keyring.lookup_cached(tokens[-1]) is keys[-1]
    assert len({(await keyring.authenticate(token)).ephemeral_id for token in tokens}) == 6


async def test_keyring_parent_that_left_the_full_cache_is_loaded_again(
    database: Database, issued: IssuedKeyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_CACHED_KEYS", 2)
    keyring = Keyring([], issued)
    made = create_key(database, NewKey(name="app"))
    token = await make_token(keyring, made.key)
    assert await keyring.authenticate(token)
    for number in range(3):
        await keyring.authenticate(create_key(database, NewKey(name=f"other {number}")).key)
    assert keyring.lookup_cached(token) is None
    assert (await keyring.authenticate(token)).id == made.id
    assert len(issued._digests_by_id) <= 2


async def test_keyring_ephemeral_key_of_a_configured_key_is_stretched_once() -> None:
    keyring = Keyring(["weak", "other"])
    token = await make_token(keyring, "weak")
    for node in (keyring, Keyring(["weak"]), Keyring(["x", "weak"])):
        keys = await asyncio.gather(*[node.authenticate(token) for _ in range(3)])
        assert isinstance(keys[0], EphemeralKey)
        assert keys[0].parent.name.startswith("SVC_API_KEYS")
        assert keys[1] is keys[0]
    with pytest.raises(AuthenticationFailed):
        await Keyring(["weaker"]).authenticate(token)
