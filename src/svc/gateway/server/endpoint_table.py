"""The model endpoints (such as chat completions), by path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from svc.dialects.endpoint import Endpoint


class EndpointTable:
    """The model endpoints of one gateway. Immutable."""

    def __init__(self, endpoints: Iterable[Endpoint], *, are_served: bool = True) -> None:
        """Without `are_served`, the endpoints only define the error format of their paths."""
        self.by_path: Mapping[bytes, Endpoint] = {endpoint.path.encode("ascii"): endpoint for endpoint in endpoints}
        self.served_by_path: Mapping[bytes, Endpoint] = self.by_path if are_served else {}
        self._by_client_header = {
            endpoint.client_header: endpoint for endpoint in self.by_path.values() if endpoint.client_header
        }

    def find_error_format(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Endpoint | None:
        """Return the endpoint whose error format the response to a request has, or None for the gateway's own format.

        It is the endpoint whose path is a prefix of `path`, else the one whose `client_header` the request has.
        Header names are lower case. `GET /v1/messages` and `POST /v1/messages/unknown` belong to `/v1/messages`.
        """
        for endpoint in self.by_path.values():
            if f"{path}/".startswith(f"{endpoint.path}/"):
                return endpoint
        for name, _ in headers:
            if name in self._by_client_header:
                return self._by_client_header[name]
        return None

    def paths_by_kind(self) -> dict[str, str]:
        """Return the path of the first endpoint for each kind of model."""
        paths: dict[str, str] = {}
        for endpoint in self.by_path.values():
            paths.setdefault(endpoint.model_kind, endpoint.path)
        return paths
