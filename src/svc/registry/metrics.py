"""Count the registry's requests, and render `/metrics` in the Prometheus text format. See docs/reference/metrics.md."""

from __future__ import annotations

from collections import Counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LABELED_METHODS: Final = frozenset(("GET", "HEAD", "PUT", "POST"))
OTHER_METHOD: Final = "other"
"""Label of all other methods, and of requests that cannot be parsed."""
REGISTRY_METRIC_HELP: Final = {
    "svc_registry_requests_total": ("counter", "Responses, by method (GET, HEAD, PUT, POST or other) and HTTP status."),
    "svc_registry_bundle_bytes_total": ("counter", "Bytes of bundles in responses that have started."),
    "svc_registry_published_total": ("counter", "Bundles published at this registry."),
    "svc_registry_bundles": ("gauge", "Bundles in the store, including yanked ones."),
}


class RegistryCounters:
    """The counters of one server."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.bundle_bytes = 0
        self.published = 0

    def render(self, bundles: int) -> str:
        """Render the page. `bundles` is the number of bundles in the store."""
        values: dict[str, float] = {
            "svc_registry_bundle_bytes_total": self.bundle_bytes,
            "svc_registry_published_total": self.published,
            "svc_registry_bundles": bundles,
        }
        lines: list[str] = []
        for name, (kind, help_text) in REGISTRY_METRIC_HELP.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            if name in values:
                lines.append(f"{name} {values[name]}")
            else:
                lines += [
                    f'{name}{{method="{method}",status="{status}"}} {count}'
                    for (method, status), count in sorted(self.requests.items())
                ]
        return "\n".join(lines) + "\n"


class RequestCounterMiddleware:
    """Counts the responses of the ASGI application."""

    def __init__(self, app: ASGIApp, counters: RegistryCounters) -> None:
        self._app = app
        self._counters = counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope.get("method", "")

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counters.requests[method if method in _LABELED_METHODS else OTHER_METHOD, message["status"]] += 1
            await send(message)

        await self._app(scope, receive, send_and_count)
