"""The ASGI application of the gateway, whose routes a reload of the configuration builds again."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from svc.gateway.local_model.provider import LocalModels
from svc.gateway.server.endpoint_table import EndpointTable


class ReloadableApp:
    """The current ASGI routes. A reload rebuilds them, since they depend on the configuration."""

    def __init__(
        self,
        build: Callable[[], Starlette],
        endpoints: EndpointTable,
        stop_streams: Callable[[], None],
        local_models: LocalModels | None = None,
    ) -> None:
        self._build = build
        self.stop_streams = stop_streams
        """Ends the streams that have no end of their own."""
        self.local_models = local_models
        self.endpoints = endpoints
        """The endpoints that the server handles without these routes."""
        self._app = build()

    @property
    def routes(self) -> list[BaseRoute]:
        """Return the current routes."""
        return self._app.routes

    def rebuild(self) -> None:
        self._app = self._build()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
