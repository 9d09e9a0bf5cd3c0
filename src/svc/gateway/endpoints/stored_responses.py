"""`GET` and `DELETE /v1/responses/{id}`, and its input items: what `[responses] store` keeps for the calling key."""

from __future__ import annotations

import time
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.errors import InvalidRequest, NotFound
from svc.gateway.endpoints.asgi_responses import authenticate_request
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.model_errors import quote_name
from svc.stores.database.base import Database
from svc.stores.database.thread import DatabaseThread
from svc.wire.key import ApiKey
from svc.wire.stored_response import StoredItem

MAX_PAGE_ITEMS: Final = 100
DEFAULT_PAGE_ITEMS: Final = 20


class ItemPage(msgspec.Struct):
    """A page of input items."""

    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedResponse(msgspec.Struct):
    """The confirmation that a response is deleted."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemQuery(msgspec.Struct):
    """The query of a list of input items."""

    limit: int = DEFAULT_PAGE_ITEMS
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    include: Any = None


class StoredResponses:
    """The handlers. They find nothing while `[responses] store` is off."""

    def __init__(self, context: GatewayContext, database: DatabaseThread) -> None:
        self._context = context
        self._database = database

    async def get_or_delete(self, request: Request) -> Response:
        """Return or delete a response. Raises NotFound."""
        return await (self.delete(request) if request.method == "DELETE" else self.get(request))

    async def get(self, request: Request) -> Response:
        """Return a response. Raises NotFound."""
        key, response_id = await self._authenticate(request)
        if request.query_params.get("stream") in ("true", "1"):
            raise InvalidRequest("A stored response cannot be streamed: omit `stream`.", param="stream")
        stored = await self._database.run_query(lambda rows: rows.get_response(key.owner_id, response_id, time.time()))
        if stored is None:
            raise self._not_found_error(response_id)
        return _json_body(stored.body.encode())

    async def delete(self, request: Request) -> Response:
        """Delete a response. Raises NotFound."""
        key, response_id = await self._authenticate(request)
        if not await self._database.run_query(
            lambda rows: rows.delete_response(key.owner_id, response_id, time.time())
        ):
            raise self._not_found_error(response_id)
        return _json_body(msgspec.json.encode(DeletedResponse(response_id)))

    async def list_input_items(self, request: Request) -> Response:
        """Return the input items of a response, a page at a time. Raises NotFound and InvalidRequest."""
        key, response_id = await self._authenticate(request)
        query = _parse_query(request)

        def select(rows: Database) -> list[StoredItem] | None:
            is_known = rows.get_response(key.owner_id, response_id, time.time()) is not None
            return rows.list_response_items(key.owner_id, response_id) if is_known else None

        items = await self._database.run_query(select)
        if items is None:
            raise self._not_found_error(response_id)
        return _json_body(msgspec.json.encode(_make_page([item for item in items if item.is_input], query)))

    async def cancel(self, request: Request) -> Response:
        """Reject a cancellation. Raises NotFound, and InvalidRequest for a response of this key.

        Only responses in the background can be cancelled (OpenAI's API reference, "Cancel a response").
        """
        key, response_id = await self._authenticate(request)
        stored = await self._database.run_query(lambda rows: rows.get_response(key.owner_id, response_id, time.time()))
        if stored is None:
            raise self._not_found_error(response_id)
        raise InvalidRequest(
            f"The response {quote_name(response_id)} cannot be cancelled: it has ended. Only a response with "
            "`background: true` can be cancelled, and the gateway makes none.",
            param="id",
        )

    async def compact(self, request: Request) -> Response:
        """Reject a compaction. Raises NotFound."""
        key = await authenticate_request(self._context, request)
        key.require_scope("chat")
        raise NotFound(
            "This gateway does not compact responses. Send a shorter `input`, or a summary of it that a model wrote."
        )

    async def _authenticate(self, request: Request) -> tuple[ApiKey, str]:
        key = await authenticate_request(self._context, request)
        key.require_scope("chat")
        return key, request.path_params["id"]

    def _not_found_error(self, response_id: str) -> NotFound:
        if not self._context.config.current.settings.responses.store:
            return NotFound("This gateway keeps no responses: set `store = true` in the table [responses].")
        return NotFound(f"There is no response {quote_name(response_id)} for this key.")


def routes(context: GatewayContext, database: DatabaseThread) -> list[BaseRoute]:
    """Return the routes of stored responses."""
    handlers = StoredResponses(context, database)
    return [
        Route("/v1/responses/compact", handlers.compact, methods=["POST"]),
        Route("/v1/responses/{id}/cancel", handlers.cancel, methods=["POST"]),
        Route("/v1/responses/{id}", handlers.get_or_delete, methods=["GET", "DELETE"]),
        Route("/v1/responses/{id}/input_items", handlers.list_input_items, methods=["GET"]),
    ]


def _json_body(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _parse_query(request: Request) -> ItemQuery:
    try:
        query = msgspec.convert(dict(request.query_params), ItemQuery, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        raise InvalidRequest(f"Invalid value for `{name}`.", param=name) from None
    if not 1 <= query.limit <= MAX_PAGE_ITEMS:
        raise InvalidRequest(f"`limit` must be from 1 to {MAX_PAGE_ITEMS}.", param="limit")
    return query


def _make_page(items: list[StoredItem], query: ItemQuery) -> ItemPage:
    """Return the page after the item `query.after`. Raises InvalidRequest if there is no such item."""
    ordered = items if query.order == "asc" else items[::-1]
    start = 0
    if query.after is not None:
        positions = [position for position, item in enumerate(ordered) if item.id == query.after]
        if not positions:
            raise InvalidRequest("`after` is not the id of an input item of this response.", param="after")
        start = positions[0] + 1
    page = ordered[start : start + query.limit]
    ids = [item.id for item in page]
    data = [msgspec.Raw(item.body.encode()) for item in page]
    return ItemPage(data, ids[0] if ids else None, ids[-1] if ids else None, start + query.limit < len(ordered))
