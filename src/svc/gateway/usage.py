"""`GET /v1/usage`: what the calling key has spent. How it is asked for and shown is in `svc.keys.spending`."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from svc.gateway.plane import Plane
from svc.gateway.routes import authenticated
from svc.keys.spending import query
from svc.stores.aside import Aside


def routes(plane: Plane, database: Aside) -> list[BaseRoute]:
    """`GET /v1/usage`: that of the calling key; with the scope `admin` that of all."""

    async def usage(request: Request) -> Response:
        key = await authenticated(plane, request)
        asked = query(request.query_params)
        if "admin" not in key.scopes:
            asked = msgspec.structs.replace(asked, key_id=key.id)
        rows = await database.ask(asked.answer)
        return Response(msgspec.json.encode({"object": "list", "data": rows}), media_type="application/json")

    return [Route("/v1/usage", usage, methods=["GET"])]
