"""The rows of keys. Every change increments `key_revision`, whose row lock orders the changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from svc.stores.database.base import StoredKey
from svc.stores.database.statements import SqlConnection, sql_placeholders

_encode = msgspec.json.Encoder().encode
_stored_key_decoder = msgspec.json.Decoder(StoredKey)


class KeyRows(SqlConnection):
    """The key queries of a `Database`."""

    def put_key(self, key: StoredKey) -> StoredKey:
        with self._transaction():
            return self._put_with_revision(key, self._increment_revision())

    def update_key(self, id: str, change: Callable[[StoredKey], StoredKey]) -> StoredKey | None:
        with self._transaction():
            revision = self._increment_revision()  # locks the row of `key_revision`: concurrent changes wait
            current = self.get_key(id)
            return None if current is None else self._put_with_revision(change(current), revision)

    def _increment_revision(self) -> int:
        self._run_statement("UPDATE key_revision SET revision = revision + 1 WHERE one = 1")
        return self.latest_key_revision()

    def _put_with_revision(self, key: StoredKey, revision: int) -> StoredKey:
        key = msgspec.structs.replace(key, revision=revision)
        self._run_statement(
            "INSERT INTO keys (id, digest, old_digest, revision, body) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET digest = excluded.digest, old_digest = excluded.old_digest,"
            " revision = excluded.revision, body = excluded.body",
            (key.id, key.digest, key.old_digest, key.revision, _encode(key).decode()),
        )
        return key

    def list_keys(self, *, after: str = "", limit: int = 1000) -> list[StoredKey]:
        return self._select_keys("WHERE id > ? ORDER BY id LIMIT ?", (after, limit))

    def count_keys(self) -> int:
        return int(self._run_statement("SELECT COUNT(*) FROM keys").fetchall()[0][0])

    def get_key(self, id: str) -> StoredKey | None:
        return next(iter(self._select_keys("WHERE id = ?", (id,))), None)

    def find_keys_by_digest(self, digests: Sequence[str]) -> list[StoredKey]:
        keys = self._select_keys(f"WHERE digest IN ({sql_placeholders(len(digests))})", digests)
        return keys + self._select_keys(f"WHERE old_digest IN ({sql_placeholders(len(digests))})", digests)

    def find_keys_by_id(self, ids: Sequence[str]) -> list[StoredKey]:
        return self._select_keys(f"WHERE id IN ({sql_placeholders(len(ids))})", ids)

    def list_changed_keys(self, revision: int, *, limit: int = 1000) -> list[StoredKey]:
        return self._select_keys("WHERE revision > ? ORDER BY revision LIMIT ?", (revision, limit))

    def latest_key_revision(self) -> int:
        return int(self._run_statement("SELECT revision FROM key_revision WHERE one = 1").fetchall()[0][0])

    def _select_keys(self, where: str, args: Sequence[Any]) -> list[StoredKey]:
        return [
            _stored_key_decoder.decode(row[0])
            for row in self._run_statement(f"SELECT body FROM keys {where}", args).fetchall()  # noqa: S608
        ]
