"""The admin API, `/v1/admin/…`: keys, usage and limits, for keys with the scope `admin`. Any key may read itself.

These are ASGI routes. `svc.keys.lifecycle` changes the keys, also for `svc keys`. `openapi.yaml` describes the routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.errors import InvalidRequest
from svc.gateway.endpoints.asgi_responses import authenticate_request, json_response, read_body
from svc.gateway.endpoints.metrics import MetricsPublisher
from svc.gateway.endpoints.usage import respond_with_usage
from svc.gateway.limits.usage_view import current_key_usage
from svc.gateway.proxy.context import GatewayContext
from svc.keys import lifecycle
from svc.keys.lifecycle import ShownKey
from svc.keys.limit_usage import KeyLimitUsage
from svc.keys.usage_query import parse_usage_query
from svc.ledger_queries.messages import KeysQuery
from svc.ledger_queries.process import QueryProcess
from svc.stores.database.thread import DatabaseThread
from svc.wire.key import EphemeralKey

AdminHandler = Callable[[Request], Awaitable[Response]]


class DefaultLimits(msgspec.Struct, frozen=True):
    """The limits of keys without their own limits. Null means no limit."""

    rpm: int | None
    """Requests per minute."""
    tpm: int | None
    """Tokens per minute."""


class ConfiguredKey(msgspec.Struct, frozen=True):
    """A key of `SVC_API_KEYS`, which is not in the database. It has neither a budget nor limits of its own."""

    id: str
    """The id of the key, which changes with its secret."""
    name: str
    """`SVC_API_KEYS #1` for the first key of the variable, and so on."""
    scopes: tuple[str, ...]
    """The scopes of the key."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and their current use."""

    object: str = "limits"
    """Always `limits`."""
    defaults: DefaultLimits
    """The limits of keys without their own limits."""
    reached: dict[str, int]
    """How often each limit was reached on this machine since the gateway started. Empty without the scope `admin`."""
    data: list[KeyLimitUsage]
    """The current use of each key, in the order of ids, including revoked keys."""
    has_more: bool
    """Whether there is another page."""


class AdminApi:
    """The admin routes of one event loop.

    `database` is a separate connection for changes, so that they do not delay model requests.
    """

    def __init__(
        self,
        context: GatewayContext,
        database: DatabaseThread,
        queries: QueryProcess,
        metrics_publisher: MetricsPublisher,
    ) -> None:
        self._context = context
        self._database = database
        self._queries = queries
        self._metrics_publisher = metrics_publisher

    def routes(self) -> list[BaseRoute]:
        """Return the routes. Handlers raise SvcError, which the application converts to a response."""
        return [
            self._route("/v1/admin/keys", GET=self._list_keys, POST=self._create_key),
            self._route("/v1/admin/keys/{id}", own_id=_id_in_path, GET=self._get_key, PATCH=self._update_key),
            self._route("/v1/admin/keys/{id}/rotate", POST=self._rotate_key),
            self._route("/v1/admin/keys/{id}/revoke", POST=self._revoke_key),
            self._route("/v1/admin/usage", GET=self._get_usage),
            self._route("/v1/admin/limits", own_id=_id_in_query, GET=self._get_limits),
        ]

    def _route(
        self, path: str, *, own_id: Callable[[Request], str | None] | None = None, **handlers: AdminHandler
    ) -> Route:
        """Return a route for the scope `admin`. Any key may read itself, if it is the key that `own_id` returns."""

        async def handle(request: Request) -> Response:
            key = await authenticate_request(self._context, request)
            method = "GET" if request.method == "HEAD" else request.method
            is_own = own_id is not None and own_id(request) == key.id and not isinstance(key, EphemeralKey)
            if not (is_own and method == "GET"):
                key.require_scope("admin")
            request.state.is_admin = "admin" in key.scopes
            return await handlers[method](request)

        return Route(path, handle, methods=list(handlers))

    # keys

    async def _list_keys(self, request: Request) -> Response:
        keys, has_more = await self._key_page(request)
        configured = [
            ConfiguredKey(key.id, key.name, tuple(sorted(key.scopes)))
            for key in self._context.keyring.configured_keys()
        ]
        return json_response({"object": "list", "data": keys, "has_more": has_more, "configured": configured})

    async def _key_page(self, request: Request) -> tuple[list[ShownKey], bool]:
        """Return the page of keys that the query selects, and whether there are more.

        The query parameters are `after`, `limit`, `search` and `revoked`. Raises InvalidRequest.
        """
        limit = request.query_params.get("limit", "100")
        if not limit.isdecimal() or not 1 <= int(limit[:9]) <= lifecycle.MAX_KEYS_PER_PAGE:
            raise InvalidRequest(f"limit must be a number from 1 to {lifecycle.MAX_KEYS_PER_PAGE}.", param="limit")
        revoked = request.query_params.get("revoked", "")
        if revoked not in ("", "true", "false"):
            raise InvalidRequest("revoked must be true or false.", param="revoked")
        after, page_size = request.query_params.get("after", ""), int(limit)
        search = request.query_params.get("search", "")
        is_revoked = None if revoked == "" else revoked == "true"
        keys = await self._queries.run(KeysQuery(after, page_size + 1, search, is_revoked))
        return keys[:page_size], len(keys) > page_size

    async def _create_key(self, request: Request) -> Response:
        new_key = lifecycle.parse_key_request(lifecycle.NewKey, await read_body(request))
        created = await self._database.run_query(lambda database: lifecycle.create_key(database, new_key))
        return json_response(created, 201, has_secret=True)

    async def _get_key(self, request: Request) -> Response:
        key_id = request.path_params["id"]
        return json_response(await self._database.run_query(lambda database: lifecycle.get_key(database, key_id)))

    async def _update_key(self, request: Request) -> Response:
        key_id = request.path_params["id"]
        change = lifecycle.parse_key_request(lifecycle.Change, await read_body(request))
        return json_response(
            await self._database.run_query(lambda database: lifecycle.update_key(database, key_id, change))
        )

    async def _rotate_key(self, request: Request) -> Response:
        key_id = request.path_params["id"]
        rotation = lifecycle.parse_key_request(lifecycle.Rotation, await read_body(request) or b"{}")
        rotated = await self._database.run_query(lambda database: lifecycle.rotate_key(database, key_id, rotation))
        return json_response(rotated, has_secret=True)

    async def _revoke_key(self, request: Request) -> Response:
        key_id = request.path_params["id"]
        return json_response(await self._database.run_query(lambda database: lifecycle.revoke_key(database, key_id)))

    # usage and limits

    async def _get_usage(self, request: Request) -> Response:
        return await respond_with_usage(self._context, self._queries, parse_usage_query(request.query_params), request)

    async def _get_limits(self, request: Request) -> Response:
        key_id = request.query_params.get("key")
        if key_id is None:
            keys, has_more = await self._key_page(request)
        else:
            key = await self._database.run_query(lambda database: lifecycle.get_key(database, key_id))
            keys, has_more = [key], False
        metrics = await self._metrics_publisher.aggregate()
        defaults = self._context.config.current.settings.limits
        reached = {
            name: int(metrics.values.get(f'svc_limits_reached_total{{limit="{name}"}}', 0))
            for name in self._context.metrics.limit_refusals
            if request.state.is_admin  # the counts are those of all keys
        }
        return json_response(
            Limits(
                defaults=DefaultLimits(defaults.rpm or None, defaults.tpm or None),
                reached=reached,
                data=await current_key_usage(self._context.rate_limiter, keys, defaults),
                has_more=has_more,
            )
        )


def _id_in_path(request: Request) -> str | None:
    id: str = request.path_params["id"]
    return id


def _id_in_query(request: Request) -> str | None:
    return request.query_params.get("key")
