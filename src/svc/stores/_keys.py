"""Keys in the database: a row each. Every change takes the next number from `key_revision`, whose lock orders them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from svc.stores._statements import Statements, marks
from svc.stores.base import StoredKey

_encode = msgspec.json.Encoder().encode
_stored = msgspec.json.Decoder(StoredKey)


class Keys(Statements):
    """The part of a Database that is about keys."""

    def put_key(self, key: StoredKey) -> StoredKey:
        with self._transaction():
            return self._put_next(key, self._next_revision())

    def change_key(self, id: str, change: Callable[[StoredKey], StoredKey]) -> StoredKey | None:
        with self._transaction():
            revision = self._next_revision()  # its row is locked from here on: others' changes wait
            found = self.key(id)
            return None if found is None else self._put_next(change(found), revision)

    def _next_revision(self) -> int:
        self._run("UPDATE key_revision SET revision = revision + 1 WHERE one = 1")
        return self.revision()

    def _put_next(self, key: StoredKey, revision: int) -> StoredKey:
        key = msgspec.structs.replace(key, revision=revision)
        self._run(
            "INSERT INTO keys (id, digest, old_digest, revision, body) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET digest = excluded.digest, old_digest = excluded.old_digest,"
            " revision = excluded.revision, body = excluded.body",
            (key.id, key.digest, key.old_digest, key.revision, _encode(key).decode()),
        )
        return key

    def list_keys(self, *, after: str = "", limit: int = 1000) -> list[StoredKey]:
        return self._keys("WHERE id > ? ORDER BY id LIMIT ?", (after, limit))

    def key(self, id: str) -> StoredKey | None:
        return next(iter(self._keys("WHERE id = ?", (id,))), None)

    def keys_of(self, digests: Sequence[str]) -> list[StoredKey]:
        found = self._keys(f"WHERE digest IN ({marks(len(digests))})", digests)
        return found + self._keys(f"WHERE old_digest IN ({marks(len(digests))})", digests)

    def keys_since(self, revision: int, *, limit: int = 1000) -> list[StoredKey]:
        return self._keys("WHERE revision > ? ORDER BY revision LIMIT ?", (revision, limit))

    def revision(self) -> int:
        return int(self._run("SELECT revision FROM key_revision WHERE one = 1").fetchall()[0][0])

    def _keys(self, where: str, args: Sequence[Any]) -> list[StoredKey]:
        return [_stored.decode(row[0]) for row in self._run(f"SELECT body FROM keys {where}", args).fetchall()]  # noqa: S608
