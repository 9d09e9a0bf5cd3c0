"""A tiny request to one backend, to see whether it works. It has no retries, and does not change circuit breakers."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from svc.dialects.base import EncodedResponse, RequestBody
from svc.dialects.endpoint import Endpoint
from svc.dialects.stream_transform import StreamTransform
from svc.errors import InternalError, SvcError
from svc.gateway.accounting.bill import EMPTY_BILL, Bill
from svc.gateway.accounting.record import AttemptRecord, RequestRecord
from svc.gateway.observability.observer import RequestStart
from svc.gateway.proxy.attempt import Attempt, AttemptOwner
from svc.gateway.proxy.context import GatewayContext
from svc.gateway.routing.backends import Backend
from svc.gateway.routing.failures import AttemptFailure, timeout_failure
from svc.gateway.upstream.forwarded_head import ForwardedHead
from svc.wire.key import ApiKey

PROVIDER_TEST_TIMEOUT_SECONDS: Final = 10.0
PROVIDER_TEST_PATH: Final = "/v1/admin/providers/{name}/test"
"""The endpoint of its ledger entry."""
TEST_REQUESTS: Final[dict[str, dict[str, object]]] = {
    "chat": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "embedding": {"input": "Hi"},
}
"""The request of each kind of model that can be tested."""


class ProviderTest(AttemptOwner):
    """One test. `error` is None if it succeeded."""

    def __init__(self, context: GatewayContext, backend: Backend, key: ApiKey, request_id: str) -> None:
        self.backend = backend
        self.error: SvcError | None = None
        self.response: EncodedResponse | None = None
        self.http_status: int = 0
        """The status of the provider's response, or 0."""
        self.duration_ms: float = 0.0
        self.bill: Bill = EMPTY_BILL
        self._context = context
        self._key = key
        self._request_id = request_id
        self._done = asyncio.Event()

    async def run(self, endpoint: Endpoint, client_field: bytes) -> None:
        """Send the request, wait for its end, and write its ledger entry. Raises InvalidRequest before it is sent."""
        context, backend = self._context, self.backend
        body = RequestBody(json.dumps({"model": backend.model_id, **TEST_REQUESTS[backend.kind]}).encode())
        routing_info = endpoint.decode_routing_info(body)
        codec = endpoint.select_codec(backend.dialect, backend.profile)
        if codec.needs_request:
            codec = codec.for_request(lambda: endpoint.decode_request(body), backend.profile)
        encoded = codec.encode_request(body, routing_info, backend.profile, lambda: endpoint.decode_request(body))
        context.ledger.ensure_accepting()
        if context.observers.on_start:
            context.observers.report_start(RequestStart(self._request_id, None, self._key, PROVIDER_TEST_PATH))
        attempt = Attempt(self, backend, codec, context.config.current.policy, routing_info, self._request_id)
        context.attempts.add(attempt)
        forwarded = ForwardedHead(b"", encoded.header_lines) if encoded.header_lines else None
        started_at = context.clock.now()
        attempt.send(context.upstream, encoded, started_at, forwarded)
        try:
            await asyncio.wait_for(self._done.wait(), PROVIDER_TEST_TIMEOUT_SECONDS)
        except TimeoutError:
            self.error = timeout_failure(f"to respond, more than {PROVIDER_TEST_TIMEOUT_SECONDS:g} seconds").error
        finally:
            if not attempt.is_done:
                attempt.cancel()
            self.http_status = attempt.http_status
            self.duration_ms = (context.clock.now() - started_at) * 1000
            if self.response is None and self.error is None:
                self.error = InternalError("The test was cancelled.")
            self._report(client_field)

    def _report(self, client_field: bytes) -> None:
        context, backend, error = self._context, self.backend, self.error
        usage = self.response.usage if self.response is not None else None
        if usage is not None:
            self.bill = Bill(usage, context.ledger.compute_cost(backend, usage))
        attempt = AttemptRecord(
            self._request_id,
            backend.provider_name,
            backend.model_id,
            backend.account_number or None,
            "ok" if error is None else "failed",
            None if error is None else error.code,
            self.http_status or None,
            self.duration_ms,
        )
        context.observers.report_attempt(attempt)
        context.tracked_request_ids.add(self._request_id)
        context.observers.report_end(
            RequestRecord(
                self._key,
                PROVIDER_TEST_PATH,
                backend.model_id,
                "ok" if error is None else "error",
                200 if error is None else error.http_status,
                time=context.ledger.timestamp(),
                request_id=self._request_id,
                client_request_id=None,
                model=backend.model_id,
                provider=backend.provider_name,
                attempt_count=1,
                duration_seconds=self.duration_ms / 1000,
                first_byte_seconds=None,
                bill=self.bill,
                code=None if error is None else error.code,
                attempt_records=() if error is None else (attempt,),
                last_attempt=attempt,
                client_field=client_field,
            )
        )

    # AttemptOwner

    def on_attempt_resend(self, attempt: Attempt) -> None:
        pass

    def on_attempt_silent(self) -> None:
        pass

    def on_attempt_failed(self, attempt: Attempt, failure: AttemptFailure) -> None:
        self.error = failure.error
        self._done.set()

    def on_attempt_response(self, attempt: Attempt, response: EncodedResponse) -> None:
        self.response = response
        self._done.set()

    def on_attempt_chunk(self, attempt: Attempt, chunk: bytes, transform: StreamTransform) -> None:
        pass
