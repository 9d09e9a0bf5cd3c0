"""The endpoints that reach for a model, by their paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from svc.dialects.endpoint import Endpoint


class EndpointTable:
    """Belongs to one gateway, and does not change."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.by_path: Mapping[bytes, Endpoint] = {endpoint.path.encode("ascii"): endpoint for endpoint in endpoints}

    def find_by_prefix(self, path: str) -> Endpoint | None:
        """The endpoint that is at `path`, or above it: its clients send requests there by mistake.

        `GET /v1/messages` and `POST /v1/messages/unknown` get errors in the format of `/v1/messages`.
        """
        for endpoint in self.by_path.values():
            if f"{path}/".startswith(f"{endpoint.path}/"):
                return endpoint
        return None

    def paths_by_kind(self) -> dict[str, str]:
        """The path for each kind of model: of several endpoints, the first."""
        paths: dict[str, str] = {}
        for endpoint in self.by_path.values():
            paths.setdefault(endpoint.model_kind, endpoint.path)
        return paths
