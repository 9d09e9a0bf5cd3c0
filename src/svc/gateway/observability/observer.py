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
    """Receives the events of requests. An observer overrides the methods that it needs. Others cost nothing.

    Methods run on the event loop and must not block. The gateway logs their exceptions, and the client is not affected.
    """

    __slots__ = ()

    def on_start(self, request: RequestStart) -> None:
        """Handle the start of a request. One `on_end` with the same request id follows."""

    def on_attempt(self, attempt: AttemptRecord) -> None:
        """Handle the end of an attempt at a provider. It precedes the request's `on_end`."""

    def on_first_byte(self, request_id: str, elapsed_ms: float) -> None:
        """Handle the first byte of a model's response, before it is sent.

        `elapsed_ms` are the milliseconds since the request was received. Error responses have no such event. Speech
        requests report it at their end, with the time of the first byte.
        """

    def on_refusal(self, record: RequestRecord) -> None:
        """Handle the end of a request with an error before any attempt at a provider. Its `on_end` follows."""

    def on_end(self, record: RequestRecord) -> None:
        """Handle the end of a request, before the last byte of the response is sent."""

    def on_batch_end(self) -> None:
        """Called after the `on_end` of one or more requests, before the last bytes of their responses are sent."""

    def on_other_response(self, entry: AccessLogEntry, client_field: bytes, limit_name: str) -> None:
        """Handle a response without a `RequestRecord`: of another route, or to a request without a valid key.

        `client_field` ends the access-log line. `limit_name` is the limit that rejected the request, or empty.
        """
