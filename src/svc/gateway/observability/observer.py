"""The interface through which the gateway reports requests. Ledger, metrics and access log are observers."""

from __future__ import annotations

from svc.gateway.accounting.record import AttemptRecord, RequestRecord
from svc.gateway.observability.access_log import AccessLogEntry
from svc.wire.key import ApiKey


class RequestStart:
    """A request that has an API key, before its limits are checked and before it is routed."""

    __slots__ = ("client_request_id", "endpoint", "key", "request_id")

    def __init__(self, request_id: str, client_request_id: str | None, key: ApiKey, endpoint: str) -> None:
        self.request_id = request_id
        self.client_request_id = client_request_id
        self.key = key
        self.endpoint = endpoint


class RequestObserver:
    """Gets the events of requests. An observer overrides the methods that it needs, and pays for no others.

    The event loop calls each method, which must not block. The gateway logs an exception, and the client never sees it.
    """

    __slots__ = ()

    def on_start(self, request: RequestStart) -> None:
        """A request begins. One `on_end` with the same request id follows."""

    def on_attempt(self, attempt: AttemptRecord) -> None:
        """An attempt at a provider ended, or the gateway gave it up. Comes before the request's `on_end`."""

    def on_first_byte(self, request_id: str, elapsed_ms: float) -> None:
        """The first byte of a model's response leaves after this. `elapsed_ms` begins at the request's arrival.

        Error responses have no such event. Speech reports it at the request's end, with the time of the first byte.
        """

    def on_end(self, record: RequestRecord) -> None:
        """A request ended. The last byte of the response leaves after this."""

    def on_other_response(self, entry: AccessLogEntry, client_field: bytes, limit_name: str) -> None:
        """A response ended that has no `RequestRecord`: of another route, or to a request without a valid key.

        `client_field` ends the access-log line. `limit_name` is the limit that rejected the request, or empty.
        """
