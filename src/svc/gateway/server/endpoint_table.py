"""The model endpoints (such as chat completions), by path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from svc.dialects.endpoint import Endpoint


class EndpointTable:
    """The model endpoints of one gateway. Immutable."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.by_path: Mapping[bytes, Endpoint] = {endpoint.path.encode("ascii"): endpoint for endpoint in endpoints}

    def find_by_prefix(self, path: str) -> Endpoint | None:
        """Return the endpoint whose path is a prefix of `path`, so that its clients get its error format.

        `GET /v1/messages` and `POST /v1/messages/unknown` get errors in the format of `/v1/messages`.
        """
        for endpoint in self.by_path.values():
            if f"{path}/".startswith(f"{endpoint.path}/"):
                return endpoint
        return None

    def paths_by_kind(self) -> dict[str, str]:
        """Return the path of the first endpoint for each kind of model."""
        paths: dict[str, str] = {}
        for endpoint in self.by_path.values():
            paths.setdefault(endpoint.model_kind, endpoint.path)
        return paths
