"""The admin API, `/v1/admin/…`: keys, usage, limits and the state of providers, for keys with the scope `admin`.

These are cold routes. What they do to keys is in `svc.keys.issuing`, which the command uses as well; how they look from
outside is in `openapi.yaml`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.errors import InvalidRequest, TooLarge
from svc.gateway.healing.breaker import State, worst
from svc.gateway.live import uses
from svc.gateway.offers import Offer
from svc.gateway.plane import Plane
from svc.gateway.providers import Provider
from svc.gateway.routes import authenticated
from svc.gateway.watch import Watch
from svc.keys import issuing
from svc.keys.issuing import ShownKey
from svc.keys.spending import query
from svc.keys.using import KeyUse
from svc.stores.aside import Aside

MAX_BODY = 1 << 20
"""Bytes; a thousand long names of models are less."""
Handler = Callable[[Request], Awaitable[Response]]


class DefaultLimits(msgspec.Struct, frozen=True):
    """For keys that carry none of their own; null is no limit."""

    rpm: int | None
    tpm: int | None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What holds, how often each limit was reached since the gateway started, and what keys use of theirs now."""

    object: str = "limits"
    defaults: DefaultLimits
    reached: dict[str, int]
    """Over all workers of this machine."""
    data: list[KeyUse]
    """Keys in the order of ids, revoked ones too."""
    has_more: bool


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """A model at a provider. `breaker` is the worst of all workers and accounts; prices in USD per million tokens."""

    id: str
    context_window: int
    max_output_tokens: int | None
    input_price: float | None
    output_price: float | None
    breaker: State
    accounts: dict[str, State]
    """By number, where the provider has several."""


class ProviderState(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that is offered; never its key."""

    name: str
    dialect: str
    base_url: str
    accounts: int
    models: list[ModelState]


class Admin:
    """Belongs to one event loop; `desk` is a database of its own, so that no long question holds up a request."""

    def __init__(self, plane: Plane, desk: Aside, watch: Watch) -> None:
        self._plane = plane
        self._desk = desk
        self._watch = watch

    def routes(self) -> list[BaseRoute]:
        """Errors are raised as SvcErrors, which the application answers."""
        return [
            self._route("/v1/admin/keys", GET=self._keys, POST=self._create),
            self._route("/v1/admin/keys/{id}", GET=self._key, PATCH=self._change),
            self._route("/v1/admin/keys/{id}/rotate", POST=self._rotate),
            self._route("/v1/admin/keys/{id}/revoke", POST=self._revoke),
            self._route("/v1/admin/usage", GET=self._usage),
            self._route("/v1/admin/limits", GET=self._limits),
            self._route("/v1/admin/providers", GET=self._providers),
        ]

    def _route(self, path: str, **handlers: Handler) -> Route:
        async def handle(request: Request) -> Response:
            (await authenticated(self._plane, request)).require("admin")
            return await handlers["GET" if request.method == "HEAD" else request.method](request)

        return Route(path, handle, methods=list(handlers))

    # keys

    async def _keys(self, request: Request) -> Response:
        found, has_more = await self._page(request)
        return _answer({"object": "list", "data": found, "has_more": has_more})

    async def _page(self, request: Request) -> tuple[list[ShownKey], bool]:
        """Those that are asked for with `after` and `limit`, and whether there are more. Raises InvalidRequest."""
        limit = request.query_params.get("limit", "100")
        if not limit.isdecimal() or not 1 <= int(limit[:9]) <= issuing.MAX_PAGE:
            raise InvalidRequest(f"limit is a number from 1 to {issuing.MAX_PAGE}.", param="limit")
        after, most = request.query_params.get("after", ""), int(limit)
        found = await self._desk.ask(lambda database: issuing.page(database, after=after, limit=most + 1))
        return found[:most], len(found) > most

    async def _create(self, request: Request) -> Response:
        wanted = issuing.asked(issuing.NewKey, await _body(request))
        made = await self._desk.ask(lambda database: issuing.create(database, wanted))
        return _answer(made, 201, secret=True)

    async def _key(self, request: Request) -> Response:
        id = request.path_params["id"]
        return _answer(await self._desk.ask(lambda database: issuing.one(database, id)))

    async def _change(self, request: Request) -> Response:
        id, wanted = request.path_params["id"], issuing.asked(issuing.Change, await _body(request))
        return _answer(await self._desk.ask(lambda database: issuing.change(database, id, wanted)))

    async def _rotate(self, request: Request) -> Response:
        id, wanted = request.path_params["id"], issuing.asked(issuing.Rotation, await _body(request) or b"{}")
        made = await self._desk.ask(lambda database: issuing.rotate(database, id, wanted))
        return _answer(made, secret=True)

    async def _revoke(self, request: Request) -> Response:
        id = request.path_params["id"]
        return _answer(await self._desk.ask(lambda database: issuing.revoke(database, id)))

    # what is going on

    async def _usage(self, request: Request) -> Response:
        rows = await self._desk.ask(query(request.query_params).answer)
        return _answer({"object": "list", "data": rows})

    async def _limits(self, request: Request) -> Response:
        id = request.query_params.get("key")
        if id is None:
            keys, has_more = await self._page(request)
        else:
            keys, has_more = [await self._desk.ask(lambda database: issuing.one(database, id))], False
        page = await self._watch.total()
        defaults = self._plane.settings.limits
        reached = {
            name: int(page.values.get(f'svc_limits_reached_total{{limit="{name}"}}', 0))
            for name in self._plane.metrics.limits
        }
        return _answer(
            Limits(
                defaults=DefaultLimits(defaults.rpm or None, defaults.tpm or None),
                reached=reached,
                data=await uses(self._plane.gate, keys, defaults),
                has_more=has_more,
            )
        )

    async def _providers(self, request: Request) -> Response:
        states = (await self._watch.total()).breakers
        found: dict[str, list[Offer]] = {}
        for offer in self._plane.router.offers():
            found.setdefault(offer.provider_name, []).append(offer)
        data = [self._provider(offers, states) for offers in found.values()]
        return _answer({"object": "list", "data": data})

    def _provider(self, offers: list[Offer], states: dict[str, State]) -> ProviderState:
        provider = offers[0].provider
        return ProviderState(
            name=provider.name,
            dialect=provider.dialect.name,
            base_url=_address(provider),
            accounts=max(1, len(offers[0].accounts)),
            models=[self._model(offer, states) for offer in offers],
        )

    def _model(self, offer: Offer, states: dict[str, State]) -> ModelState:
        model, price = offer.model, self._plane.ledger.prices.of(offer.provider_name, offer.model_id)
        name = f"{offer.provider_name}/{model.id}"
        accounts: dict[str, State] = {
            str(one.account): states.get(f"{name}#{one.account}", "closed") for one in offer.accounts
        }
        return ModelState(
            id=model.id,
            context_window=model.context_window,
            max_output_tokens=model.max_output_tokens,
            input_price=price.input if price else None,
            output_price=price.output if price else None,
            breaker=worst([states.get(name, "closed"), *accounts.values()]),
            accounts=accounts,
        )


async def _body(request: Request) -> bytes:
    body = await request.body()
    if len(body) > MAX_BODY:
        raise TooLarge(f"The body is larger than {MAX_BODY >> 10} KiB.")
    return body


def _address(provider: Provider) -> str:
    """Without a user or a password that it may hold."""
    address = provider.address
    return address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()


def _answer(body: Any, status: int = 200, *, secret: bool = False) -> Response:
    headers = {"cache-control": "no-store"} if secret else {}
    return Response(msgspec.json.encode(body), status, headers, "application/json")
