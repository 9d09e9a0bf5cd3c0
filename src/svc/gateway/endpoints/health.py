"""`GET /health` and `GET /`: the health of the process."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc import __version__
from svc.gateway.endpoints.asgi_responses import json_response


class Health(msgspec.Struct):
    """The health of the process."""

    status: str
    """Always `ok`."""
    version: str
    """The version of the gateway."""
    service: str
    """Always `svc-gateway`."""


class VerboseHealth(Health):
    """The health of the process and its components. The gateway serves requests in any case."""

    degraded: list[str]
    """The degraded components: `keys`, `ledger`, `journal`, `redis`."""


def routes(list_degraded: Callable[[], list[str]]) -> list[BaseRoute]:
    """Return `GET /health` and `GET /`. `list_degraded` returns the names of the degraded components."""

    async def health(request: Request) -> Response:
        if request.query_params.get("verbose") not in (None, "0"):
            return json_response(VerboseHealth("ok", __version__, "svc-gateway", list_degraded()))
        return json_response(Health("ok", __version__, "svc-gateway"))

    async def root(request: Request) -> Response:
        return json_response(Health("ok", __version__, "svc-gateway"))

    return [Route("/", root, methods=["GET"]), Route("/health", health, methods=["GET"])]
