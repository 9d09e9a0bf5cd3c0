"""The admin API, `/v1/admin/…`: keys, usage, limits and the state of providers, for keys with the scope `admin`.

These are ASGI routes. `svc.keys.lifecycle` changes the keys, also for `svc keys`. `openapi.yaml` describes the routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.errors import InvalidRequest
from svc.gateway.endpoints.metrics import MetricsPublisher
from svc.gateway.endpoints.responses import authenticate_request, read_body
from svc.gateway.endpoints.usage import query_usage
from svc.gateway.limits.usage_view import current_key_usage
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.circuit_breaker import worst_state
from svc.gateway.routing.providers import Provider
from svc.keys import lifecycle
from svc.keys.lifecycle import ShownKey
from svc.keys.limit_usage import KeyLimitUsage
from svc.keys.usage_query import parse_usage_query
from svc.resilience import BreakerState
from svc.stores.database.thread import DatabaseThread

AdminHandler = Callable[[Request], Awaitable[Response]]


class DefaultLimits(msgspec.Struct, frozen=True):
    """The limits of keys without their own limits. Null means no limit."""

    rpm: int | None
    """Requests per minute."""
    tpm: int | None
    """Tokens per minute."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and their current use."""

    object: str = "limits"
    """Always `limits`."""
    defaults: DefaultLimits
    """The limits of keys without their own limits."""
    reached: dict[str, int]
    """How often each limit was reached on this machine since the gateway started."""
    data: list[KeyLimitUsage]
    """The current use of each key, in the order of ids, including revoked keys."""
    has_more: bool
    """Whether there is another page."""


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """A model at a provider."""

    id: str
    """The id of the model."""
    context_window: int
    """Tokens of prompt and response together."""
    max_output_tokens: int | None
    """Maximum tokens of a response. Null means unknown."""
    input_price: float | None
    """USD per million input tokens."""
    output_price: float | None
    """USD per million output tokens."""
    breaker: BreakerState
    """The worst state of the circuit breaker over all workers and accounts."""
    accounts: dict[str, BreakerState]
    """The state of the circuit breaker of each account, by its number."""


class ProviderState(msgspec.Struct, frozen=True, kw_only=True):
    """A provider, without its key."""

    name: str
    """The name of the provider."""
    dialect: str
    """Its dialect."""
    base_url: str
    """Its address."""
    accounts: int
    """The number of its accounts."""
    models: list[ModelState]
    """Its models."""


class AdminApi:
    """The admin routes of one event loop.

    `database` is a separate connection, so that long queries do not delay model requests.
    """

    def __init__(self, context: GatewayContext, database: DatabaseThread, metrics_publisher: MetricsPublisher) -> None:
        self._context = context
        self._database = database
        self._metrics_publisher = metrics_publisher

    def routes(self) -> list[BaseRoute]:
        """Return the routes. Handlers raise SvcError, which the application converts to a response."""
        return [
            self._route("/v1/admin/keys", GET=self._list_keys, POST=self._create_key),
            self._route("/v1/admin/keys/{id}", GET=self._get_key, PATCH=self._update_key),
            self._route("/v1/admin/keys/{id}/rotate", POST=self._rotate_key),
            self._route("/v1/admin/keys/{id}/revoke", POST=self._revoke_key),
            self._route("/v1/admin/usage", GET=self._get_usage),
            self._route("/v1/admin/limits", GET=self._get_limits),
            self._route("/v1/admin/providers", GET=self._list_providers),
        ]

    def _route(self, path: str, **handlers: AdminHandler) -> Route:
        async def handle(request: Request) -> Response:
            (await authenticate_request(self._context, request)).require_scope("admin")
            return await handlers["GET" if request.method == "HEAD" else request.method](request)

        return Route(path, handle, methods=list(handlers))

    # keys

    async def _list_keys(self, request: Request) -> Response:
        keys, has_more = await self._key_page(request)
        return _json_response({"object": "list", "data": keys, "has_more": has_more})

    async def _key_page(self, request: Request) -> tuple[list[ShownKey], bool]:
        """Return the page of keys that the query selects, and whether there are more.

        The query parameters are `after` and `limit`. Raises InvalidRequest.
        """
        limit = request.query_params.get("limit", "100")
        if not limit.isdecimal() or not 1 <= int(limit[:9]) <= lifecycle.MAX_KEYS_PER_PAGE:
            raise InvalidRequest(f"limit must be a number from 1 to {lifecycle.MAX_KEYS_PER_PAGE}.", param="limit")
        after, page_size = request.query_params.get("after", ""), int(limit)
        keys = await self._database.run_query(
            lambda database: lifecycle.list_keys(database, after=after, limit=page_size + 1)
        )
        return keys[:page_size], len(keys) > page_size

    async def _create_key(self, request: Request) -> Response:
        new_key = lifecycle.parse_key_request(lifecycle.NewKey, await read_body(request))
        created = await self._database.run_query(lambda database: lifecycle.create_key(database, new_key))
        return _json_response(created, 201, secret=True)

    async def _get_key(self, request: Request) -> Response:
        key_id = request.path_params["id"]
        return _json_response(await self._database.run_query(lambda database: lifecycle.get_key(database, key_id)))

    async def _update_key(self, request: Request) -> Response:
        key_id = request.path_params["id"]
        change = lifecycle.parse_key_request(lifecycle.Change, await read_body(request))
        return _json_response(
            await self._database.run_query(lambda database: lifecycle.update_key(database, key_id, change))
        )

    async def _rotate_key(self, request: Request) -> Response:
        key_id = request.path_params["id"]
        rotation = lifecycle.parse_key_request(lifecycle.Rotation, await read_body(request) or b"{}")
        rotated = await self._database.run_query(lambda database: lifecycle.rotate_key(database, key_id, rotation))
        return _json_response(rotated, secret=True)

    async def _revoke_key(self, request: Request) -> Response:
        key_id = request.path_params["id"]
        return _json_response(await self._database.run_query(lambda database: lifecycle.revoke_key(database, key_id)))

    # usage, limits and providers

    async def _get_usage(self, request: Request) -> Response:
        rows = await query_usage(self._context, self._database, parse_usage_query(request.query_params))
        return _json_response({"object": "list", "data": rows})

    async def _get_limits(self, request: Request) -> Response:
        key_id = request.query_params.get("key")
        if key_id is None:
            keys, has_more = await self._key_page(request)
        else:
            key = await self._database.run_query(lambda database: lifecycle.get_key(database, key_id))
            keys, has_more = [key], False
        page = await self._metrics_publisher.aggregate()
        defaults = self._context.config.current.settings.limits
        reached = {
            name: int(page.values.get(f'svc_limits_reached_total{{limit="{name}"}}', 0))
            for name in self._context.metrics.limit_refusals
        }
        return _json_response(
            Limits(
                defaults=DefaultLimits(defaults.rpm or None, defaults.tpm or None),
                reached=reached,
                data=await current_key_usage(self._context.rate_limiter, keys, defaults),
                has_more=has_more,
            )
        )

    async def _list_providers(self, request: Request) -> Response:
        states = (await self._metrics_publisher.aggregate()).breakers
        backends_by_provider: dict[str, list[Backend]] = {}
        for backend in self._context.router.backends():
            backends_by_provider.setdefault(backend.provider_name, []).append(backend)
        data = [self._provider_state(backends, states) for backends in backends_by_provider.values()]
        return _json_response({"object": "list", "data": data})

    def _provider_state(self, backends: list[Backend], states: dict[str, BreakerState]) -> ProviderState:
        provider = backends[0].provider
        return ProviderState(
            name=provider.name,
            dialect=provider.dialect.name,
            base_url=_public_base_url(provider),
            accounts=max(1, len(backends[0].account_backends)),
            models=[self._model_state(backend, states) for backend in backends],
        )

    def _model_state(self, backend: Backend, states: dict[str, BreakerState]) -> ModelState:
        model, price = backend.model, self._context.ledger.prices.get(backend.provider_name, backend.model_id)
        name = f"{backend.provider_name}/{model.id}"
        account_states: dict[str, BreakerState] = {
            str(account.account_number): states.get(f"{name}#{account.account_number}", "closed")
            for account in backend.account_backends
        }
        return ModelState(
            id=model.id,
            context_window=model.context_window,
            max_output_tokens=model.max_output_tokens,
            input_price=price.input if price else None,
            output_price=price.output if price else None,
            breaker=worst_state([states.get(name, "closed"), *account_states.values()]),
            accounts=account_states,
        )


def _public_base_url(provider: Provider) -> str:
    """Return the provider's base URL without user name and password."""
    address = provider.address
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()


def _json_response(body: Any, status: int = 200, *, secret: bool = False) -> Response:
    headers = {"cache-control": "no-store"} if secret else {}
    return Response(msgspec.json.encode(body), status, headers, "application/json")
