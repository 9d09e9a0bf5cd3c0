"""Classifies failed attempts: the client's error, and whether another attempt may follow. Pure functions."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from svc.dialects.endpoint import Codec
from svc.dialects.upstream_errors import credentials_rejected_error
from svc.errors import InvalidRequest, ModelNotFound, ProviderFailed, RateLimited, SvcError
from svc.gateway.routing.local_errors import describe_local_error, is_out_of_memory
from svc.resilience import Backoff, parse_retry_after

MAX_RETRY_WAIT_SECONDS: Final = 2.0
"""After a longer `retry-after`, the request uses the next backend instead of waiting."""
RETRY_BACKOFF: Final = Backoff(0.1, 2.0)
INTERRUPTED_MESSAGE: Final = "The provider's response was interrupted: connection lost."
"""opencode, pi and other agents retry a failed stream only if its message names a lost connection or a timeout."""
_INPUT_KIND_PATTERN: Final = r"(image|audio|video|file)"
_UNSUPPORTED_INPUT_PATTERN: Final = re.compile(
    rf"{_INPUT_KIND_PATTERN} input is not supported|no endpoints found that support {_INPUT_KIND_PATTERN} input"
    rf"|(?:does|do) not support {_INPUT_KIND_PATTERN}s?\b|unsupported content part type: \W*{_INPUT_KIND_PATTERN}"
    rf"|missing data required for {_INPUT_KIND_PATTERN} input",
    re.IGNORECASE,
)


class RetryDecision(enum.Enum):
    """The next step of the retry loop after a failure.

    SAME_BACKEND retries the backend, and then tries the others. NEXT_BACKEND tries the others. GIVE_UP reports the
    error, since every backend would fail.
    """

    SAME_BACKEND = "same_backend"
    NEXT_BACKEND = "next_backend"
    GIVE_UP = "give_up"


class AttemptFailure(msgspec.Struct, frozen=True):
    """The failure of an attempt. `retry_after` is the provider's value, in seconds."""

    error: SvcError
    retry_decision: RetryDecision
    retry_after: float | None = None
    counts_as_outage: bool = False
    """Whether the provider sent no response, or only a server error."""
    is_local: bool = False
    """Whether this machine caused it, so that it says nothing about the provider."""


def classify_status(status: int, headers: Mapping[bytes, bytes], message: str | None) -> AttemptFailure:
    """Return the failure for an upstream's status. `message` is the upstream's error message."""
    if (kind := _unsupported_input_kind(status, message)) is not None:
        return AttemptFailure(
            InvalidRequest(f"This model does not support {kind} input.", param="messages"), RetryDecision.GIVE_UP
        )
    if status in (400, 413, 422):
        return AttemptFailure(
            InvalidRequest(message or "The provider rejected the request as malformed."), RetryDecision.GIVE_UP
        )
    if status == 404:
        return AttemptFailure(
            ModelNotFound(message or "The provider does not know the model.", param="model"), RetryDecision.GIVE_UP
        )
    if status == 429:
        return _rate_limit_failure(_retry_after(headers))
    if status in (401, 403):
        return AttemptFailure(credentials_rejected_error(), RetryDecision.NEXT_BACKEND)
    if status == 408 or status >= 500:
        problem = "is overloaded" if status in (503, 529) else f"failed with status {status}"
        return AttemptFailure(
            ProviderFailed(f"The provider {problem}."), RetryDecision.SAME_BACKEND, _retry_after(headers), True
        )
    if 400 <= status < 500:
        return AttemptFailure(
            ProviderFailed(f"The provider rejected the request with status {status}."), RetryDecision.GIVE_UP
        )
    return AttemptFailure(
        ProviderFailed(f"The provider returned the unexpected status {status}."), RetryDecision.NEXT_BACKEND
    )


def classify_error_response(
    codec: Codec, status: int, headers: Mapping[bytes, bytes], raw: bytes, local_request: bytes | None = None
) -> AttemptFailure:
    """Return the failure for a complete error response. Its status, type and headers may be forwarded.

    `local_request`: the client's body, if a model of this machine sent the response. The client then gets the gateway's
    own message.
    """
    message = codec.decode_error_message(raw)
    failure = classify_status(status, headers, message)
    is_unsupported_input = isinstance(failure.error, InvalidRequest) and failure.error.param == "messages"
    if is_unsupported_input:
        failure.error.param = codec.map_field_name("messages")
    elif local_request is not None:
        return _describe_local_failure(codec, failure, status, raw, local_request)
    if isinstance(failure.error, InvalidRequest):
        failure.error.param = failure.error.param or codec.decode_error_param(raw)
    failure.error.upstream = codec.decode_upstream_error(status, headers, raw)
    if failure.error.upstream is not None and message:
        failure.error.message = message
    return failure


def _describe_local_failure(
    codec: Codec, failure: AttemptFailure, status: int, raw: bytes, request: bytes
) -> AttemptFailure:
    if is_out_of_memory(raw):  # with status 400, too
        error = ProviderFailed("The model of this machine has no memory left for this request.")
        return AttemptFailure(error, RetryDecision.NEXT_BACKEND)
    described = describe_local_error(status, raw, request, codec.map_field_name)
    if described is not None:
        return AttemptFailure(described, RetryDecision.GIVE_UP)
    if isinstance(failure.error, ModelNotFound):
        failure.error.message = "The model of this machine does not serve this request."
    return failure


def _unsupported_input_kind(status: int, message: str | None) -> str | None:
    """Return the kind of input that a model does not support, if the upstream's status is not specific.

    llama.cpp sends status 500 ("image input is not supported"), OpenRouter 404 ("No endpoints found that support image
    input"). The request would always fail, so it is not retried.
    """
    if not message or (status < 500 and status != 404):
        return None
    match = _UNSUPPORTED_INPUT_PATTERN.search(message)
    return match.group(match.lastindex or 0).lower() if match is not None else None


def connection_failure(reason: str, *, connected: bool, is_local: bool = False) -> AttemptFailure:
    """Return the failure for a connection that was refused or interrupted, or that sent invalid HTTP.

    `reason` is for the log. `is_local`: the backend is a process of this machine. If it dies during a request, the
    request may be the cause, so there is no retry.
    """
    message = INTERRUPTED_MESSAGE if connected else "The provider cannot be reached."
    decision = RetryDecision.NEXT_BACKEND if is_local and connected else RetryDecision.SAME_BACKEND
    return AttemptFailure(ProviderFailed(message, reason=reason), decision, counts_as_outage=True)


def no_socket_failure(reason: str) -> AttemptFailure:
    """Return the failure for a connection for which this machine has no resources. `reason` is for the log."""
    error = ProviderFailed("The gateway cannot open another connection to the provider.", reason=reason)
    return AttemptFailure(error, RetryDecision.SAME_BACKEND, is_local=True)


def timeout_failure(when: str, reason: str = "", *, kind: str = "Response") -> AttemptFailure:
    """Return the failure for a timeout, which is retried at another backend only."""
    return AttemptFailure(
        ProviderFailed(f"{kind} timeout: the provider took too long {when}.", reason=reason),
        RetryDecision.NEXT_BACKEND,
        counts_as_outage=True,
    )


def invalid_response_failure(error: SvcError) -> AttemptFailure:
    """Return the failure for an unusable response. It is billed, so the same backend gets no retry.

    An error that the provider itself reports in a response counts like a status 5xx.
    """
    error.strip_traceback()
    if isinstance(error, InvalidRequest):
        return AttemptFailure(error, RetryDecision.GIVE_UP)
    if isinstance(error, RateLimited):
        return _rate_limit_failure(None)
    is_provider_error = isinstance(error, ProviderFailed) and error.is_reported_by_provider
    return AttemptFailure(error, RetryDecision.SAME_BACKEND if is_provider_error else RetryDecision.NEXT_BACKEND)


def _rate_limit_failure(requested_wait: float | None) -> AttemptFailure:
    wait = 1.0 if requested_wait is None else requested_wait
    retry_decision = RetryDecision.SAME_BACKEND if wait <= MAX_RETRY_WAIT_SECONDS else RetryDecision.NEXT_BACKEND
    error = RateLimited("The provider's rate limit is reached (upstream).", retry_after=wait, limit="upstream")
    return AttemptFailure(error, retry_decision, requested_wait)


def _retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    milliseconds, value = headers.get(b"retry-after-ms", b""), headers.get(b"retry-after", b"")
    return parse_retry_after(milliseconds.decode("latin-1"), value.decode("latin-1"))
