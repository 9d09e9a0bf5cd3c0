"""The rows of stored responses and their items. Expired ones are not found, and are deleted later.

Their ids are kept longer, so that the id of a deleted response, or of another key's, is not taken for an unknown one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from svc.stores.database.statements import SqlConnection, split_into_chunks, sql_placeholders
from svc.wire.stored_response import StoredItem, StoredResponse

_ITEM_PARAMETERS: Final = 6
_ID_PARAMETERS: Final = 4
_CONVERSATION: Final = (
    "WITH RECURSIVE conversation (id, previous_id, depth) AS ("
    " SELECT id, previous_id, 0 FROM responses WHERE key_id = ? AND id = ? AND expires_at > ?"
    " UNION ALL SELECT responses.id, responses.previous_id, depth + 1 FROM responses"
    " JOIN conversation ON responses.id = conversation.previous_id"
    " WHERE responses.key_id = ? AND responses.expires_at > ? AND depth < ?) "
)
"""The response and those that it continues. Its parameters are key, id, time, key, time, length."""
_IS_KEPT: Final = "AND response_id IN (SELECT id FROM responses WHERE key_id = ? AND expires_at > ?)"
_INSERT_ITEMS: Final = "INSERT INTO response_items (key_id, response_id, position, item_id, is_input, body) VALUES "
_EXTEND_CONVERSATION: Final = (
    _CONVERSATION + "UPDATE responses SET expires_at = ?"  # noqa: S608 constants only
    " WHERE key_id = ? AND expires_at < ? AND id IN (SELECT id FROM conversation)"
)
_SELECT_CONVERSATION: Final = _CONVERSATION + "SELECT id, previous_id FROM conversation ORDER BY depth DESC"  # noqa: S608
_SELECT_CONVERSATION_ITEMS: Final = (
    _CONVERSATION + "SELECT item_id, body, is_input FROM conversation"  # noqa: S608 constants only
    " JOIN response_items ON response_items.response_id = conversation.id"
    " WHERE response_items.key_id = ? ORDER BY depth DESC, position"
)
_PRUNE_IDS: Final = (
    "DELETE FROM response_ids WHERE (id, key_id) IN ("
    " SELECT id, key_id FROM response_ids WHERE expires_at <= ? AND NOT EXISTS ("
    " SELECT 1 FROM responses WHERE responses.key_id = response_ids.key_id AND responses.id = response_ids.response_id)"
    " LIMIT ?)"
)
MAX_CONVERSATION_LENGTH: Final = 10_000
"""Maximum number of responses of one conversation."""
MIN_ID_RETENTION_SECONDS: Final = 30 * 86_400
"""How long an id is kept at least. OpenAI keeps responses for 30 days, whenever the gateway deletes its own."""


class ResponseRows(SqlConnection):
    """The queries of stored responses of a `Database`."""

    def put_response(self, response: StoredResponse) -> None:
        with self._transaction():
            self._run_statement(
                "INSERT INTO responses"
                " (key_id, id, previous_id, created_at, expires_at, provider, account, account_name, native, body)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key_id, id) DO UPDATE SET body = excluded.body",
                (
                    *(response.key_id, response.id, response.previous_id, response.created_at, response.expires_at),
                    *(response.provider, response.account, response.account_name),
                    *(int(response.is_native), response.body),
                ),
            )
            self._delete_items(response.key_id, [response.id])
            rows = [
                (response.key_id, response.id, position, item.id, int(item.is_input), item.body)
                for position, item in enumerate(response.items)
            ]
            for chunk in split_into_chunks(rows, _ITEM_PARAMETERS):
                places = ", ".join(f"({sql_placeholders(_ITEM_PARAMETERS)})" for _ in chunk)
                self._run_statement(_INSERT_ITEMS + places, [value for row in chunk for value in row])
            self._put_ids(response)
            if response.previous_id is not None:
                self._extend_conversation(response)

    def _put_ids(self, response: StoredResponse) -> None:
        expires_at = max(response.expires_at, response.created_at + MIN_ID_RETENTION_SECONDS)
        ids = dict.fromkeys([response.id, *(item.id for item in response.items if not item.is_input)])
        rows = [(id, response.key_id, response.id, expires_at) for id in ids]
        for chunk in split_into_chunks(rows, _ID_PARAMETERS):
            places = ", ".join(f"({sql_placeholders(_ID_PARAMETERS)})" for _ in chunk)
            self._run_statement(
                f"INSERT INTO response_ids (id, key_id, response_id, expires_at) VALUES {places}"  # noqa: S608
                " ON CONFLICT (id, key_id) DO NOTHING",
                [value for row in chunk for value in row],
            )

    def _extend_conversation(self, response: StoredResponse) -> None:
        """Keep the responses that this one continues as long as it."""
        now = response.created_at
        self._run_statement(
            _EXTEND_CONVERSATION,
            (
                *(response.key_id, response.previous_id, now, response.key_id, now, MAX_CONVERSATION_LENGTH),
                *(response.expires_at, response.key_id, response.expires_at),
            ),
        )

    def get_response(self, key_id: str, id: str, now: float) -> StoredResponse | None:
        rows = self._run_statement(
            "SELECT previous_id, created_at, expires_at, provider, account, account_name, native, body FROM responses"
            " WHERE key_id = ? AND id = ? AND expires_at > ?",
            (key_id, id, now),
        ).fetchall()
        if not rows:
            return None
        previous_id, created_at, expires_at, provider, account, account_name, is_native, body = rows[0]
        return StoredResponse(
            id=id,
            key_id=key_id,
            created_at=created_at,
            expires_at=expires_at,
            previous_id=previous_id,
            provider=provider,
            account=account,
            account_name=account_name,
            is_native=bool(is_native),
            body=body,
        )

    def find_missing_response(self, key_id: str, id: str, now: float) -> str | None:
        links = self._run_statement(
            _SELECT_CONVERSATION,
            (key_id, id, now, key_id, now, MAX_CONVERSATION_LENGTH),
        ).fetchall()
        if not links:
            return id
        previous_id: str | None = links[0][1]  # the oldest one continues a response that is gone
        return previous_id

    def list_conversation(self, key_id: str, id: str, now: float) -> list[StoredItem] | None:
        if self.find_missing_response(key_id, id, now) is not None:
            return None
        rows = self._run_statement(
            _SELECT_CONVERSATION_ITEMS, (key_id, id, now, key_id, now, MAX_CONVERSATION_LENGTH, key_id)
        ).fetchall()
        return [StoredItem(row[0], row[1], bool(row[2])) for row in rows]

    def list_response_items(self, key_id: str, response_id: str) -> list[StoredItem]:
        return self._select_items("AND response_id = ? ORDER BY position", (key_id, response_id))

    def find_response_items(self, key_id: str, item_ids: Sequence[str], now: float) -> list[StoredItem]:
        items = []
        for chunk in split_into_chunks(item_ids):
            where = f"AND item_id IN ({sql_placeholders(len(chunk))}) {_IS_KEPT}"
            items += self._select_items(where, (key_id, *chunk, key_id, now))
        return items

    def has_stored_id(self, ids: Sequence[str]) -> bool:
        return any(
            self._run_statement(
                f"SELECT 1 FROM response_ids WHERE id IN ({sql_placeholders(len(chunk))}) LIMIT 1",  # noqa: S608
                chunk,
            ).fetchall()
            for chunk in split_into_chunks(ids)
        )

    def _select_items(self, where: str, args: Sequence[Any]) -> list[StoredItem]:
        sql = f"SELECT item_id, body, is_input FROM response_items WHERE key_id = ? {where}"  # noqa: S608
        return [StoredItem(row[0], row[1], bool(row[2])) for row in self._run_statement(sql, args).fetchall()]

    def delete_response(self, key_id: str, id: str, now: float) -> bool:
        with self._transaction():
            sql = "DELETE FROM responses WHERE key_id = ? AND id = ? AND expires_at > ?"
            is_deleted = self._run_statement(sql, (key_id, id, now)).rowcount > 0
            if is_deleted:
                self._delete_items(key_id, [id])
        return is_deleted

    def prune_responses(self, now: float, *, limit: int = 500) -> int:
        rows = self._run_statement(
            "SELECT key_id, id FROM responses WHERE expires_at <= ? LIMIT ?", (now, limit)
        ).fetchall()
        for key_id, id in rows:
            with self._transaction():
                # Another process may have extended the conversation since.
                sql = "DELETE FROM responses WHERE key_id = ? AND id = ? AND expires_at <= ?"
                if self._run_statement(sql, (key_id, id, now)).rowcount:
                    self._delete_items(key_id, [id])
        with self._transaction():
            pruned_ids = self._run_statement(_PRUNE_IDS, (now, limit)).rowcount
        return len(rows) + pruned_ids

    def _delete_items(self, key_id: str, ids: Sequence[str]) -> None:
        sql = f"DELETE FROM response_items WHERE key_id = ? AND response_id IN ({sql_placeholders(len(ids))})"  # noqa: S608
        self._run_statement(sql, (key_id, *ids))
