"""Define all errors. Each class has its error code, HTTP status and type.

SvcError
├── InvalidRequest          invalid_request        400
│   ├── UploadConflict      invalid_request        409
│   ├── TooLarge            invalid_request        413
│   ├── MisdirectedRequest  invalid_request        421
│   ├── WebSocketUnsupported invalid_request       426
│   └── HeadTooLarge        invalid_request        431
├── AuthenticationFailed    authentication_error   401
├── PermissionDenied        permission_denied      403
├── ModelNotFound           model_not_found        404
├── NotFound                not_found              404
├── MethodNotAllowed        method_not_allowed     405
├── RateLimited             rate_limit_exceeded    429
├── ProviderFailed          provider_error         502
├── SpeechFailed            asr_error              500
├── InternalError           internal_error         500
│   ├── ShuttingDown        internal_error         503
│   └── LimitsUnavailable   internal_error         503
├── BundleNotFound          bundle_not_found       404
├── InvalidBundle           invalid_bundle         400
├── AlreadyExists           already_exists         409
├── InsufficientStorage     insufficient_storage   507
├── RegistryFailed          registry_error         502
│   └── RegistryUnreachable registry_error         502
├── GatewayFailed           gateway_error          502
├── PipelineFailed          pipeline_error         500
├── CommandFailed           a command failed (exit status 1)
└── UsageError              a command or configuration is wrong (exit status 2)

The message of an error is safe to show to the client: no keys, and no internal addresses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self


class UpstreamError:
    """The status, type and headers of a provider's error that an Anthropic client gets from an Anthropic provider.

    The gateway writes the body of the response itself. It has the `details` of the provider's error, if there are any.
    """

    __slots__ = ("details", "headers", "status", "type")

    def __init__(
        self, status: int, kind: str, headers: Mapping[str, str], details: Mapping[str, Any] | None = None
    ) -> None:
        self.status = status
        self.type = kind
        self.headers = headers
        self.details = details


class SvcError(Exception):
    """The base of all errors. `param` names the invalid field, or is None.

    `status` and `headers` are the gateway's own. The response has `http_status` and `http_headers`, which include those
    of `upstream`.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"
    reason: str = ""
    """The cause, for operators, without secrets. Logs and commands show it with the message, responses never do."""

    def __init__(self, message: str, *, param: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.details = details
        """`error.details` of the Messages API, whose clients decide by it what to do. Other clients do not get it."""
        self.request_id: str | None = None
        """In the client: the gateway's `x-request-id`."""
        self.upstream: UpstreamError | None = None

    @property
    def http_status(self) -> int:
        """Return the HTTP status of the response: the upstream's if its error is forwarded, else `status`."""
        return self.status if self.upstream is None else self.upstream.status

    @property
    def http_headers(self) -> Mapping[str, str]:
        """Return the headers of the response: `headers`, and those of the upstream's error if it is forwarded."""
        return self.headers if self.upstream is None else {**self.headers, **self.upstream.headers}

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the gateway's own response headers for this error."""
        return {}

    def strip_traceback(self) -> Self:
        """Remove the traceback, whose frames keep all local variables alive, and return self."""
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class InvalidRequest(SvcError):
    """The request is malformed, or every provider would reject it.

    To fix: Correct the field that `param` or the message names.
    """

    code = "invalid_request"
    status = 400
    type = "invalid_request_error"


class UploadConflict(InvalidRequest):
    """The chunk does not continue the upload, the upload is incomplete, or another request is writing it.

    To fix: Read the upload's `offset` with `GET /v1/admin/uploads/{id}`, and continue there.
    """

    status = 409


class TooLarge(InvalidRequest):
    """The body is larger than `gateway.max_body`.

    To fix: Send a smaller body, or raise `gateway.max_body`.
    """

    status = 413


class MisdirectedRequest(InvalidRequest):
    """The request has no key, and its `Host` is not allowed (RFC 9110, section 15.5.20).

    To fix: Send a key, or add the name to `gateway.hosts`.
    """

    status = 421


class HeadTooLarge(InvalidRequest):
    """The head is larger than `gateway.max_header`, or has more than 100 headers.

    To fix: Send fewer or shorter headers.
    """

    status = 431


class WebSocketUnsupported(InvalidRequest):
    """The path supports POST, not WebSocket (RFC 9110, section 15.5.22).

    To fix: Send the request with POST. Codex does so after this error.
    """

    status = 426

    @property
    def headers(self) -> Mapping[str, str]:
        return {"upgrade": "HTTP/1.1"}


class AuthenticationFailed(SvcError):
    """The key is missing, unknown, revoked or expired.

    To fix: Send a valid key as bearer token or in `x-api-key`.
    """

    code = "authentication_error"
    status = 401
    type = "authentication_error"

    @property
    def headers(self) -> Mapping[str, str]:
        return {"www-authenticate": "Bearer"}


class PermissionDenied(SvcError):
    """The key lacks the scope for this request.

    To fix: Use a key with the scope that the message names.
    """

    code = "permission_denied"
    status = 403
    type = "permission_error"


class ModelNotFound(SvcError):
    """No provider has the model, the key may not use it, or the provider does not know it.

    To fix: Choose a model from `GET /v1/models`. The message says why the model is missing.
    """

    code = "model_not_found"
    status = 404
    type = "invalid_request_error"


class NotFound(SvcError):
    """There is nothing at this path.

    To fix: Check the path, such as `/v1` in the base URL.
    """

    code = "not_found"
    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(SvcError):
    """The path does not support the method.

    To fix: Use a method from the response header `allow`.
    """

    code = "method_not_allowed"
    status = 405
    type = "invalid_request_error"

    def __init__(self, message: str, *, allow: str = "") -> None:
        super().__init__(message)
        self.allow = allow

    @property
    def headers(self) -> Mapping[str, str]:
        return {"allow": self.allow} if self.allow else {}


class RateLimited(SvcError):
    """A limit of the key or of the provider is reached, or the key cannot be checked while the database is down.

    To fix: Wait for the seconds of `retry-after`, or raise the limit of the key.

    `retry_after` is in seconds. `limit` says which limit was reached: `rpm`, `tpm`, `concurrency`, `budget`, `queue` or
    `upstream`, or is empty if no limit was.
    """

    code = "rate_limit_exceeded"
    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after: float = 1.0, limit: str = "") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.limit = limit

    @property
    def headers(self) -> Mapping[str, str]:
        # The SDK gives up above 120 s, and clients retry at once after 0.
        return {"retry-after": str(max(1, min(120, math.ceil(self.retry_after))))}


class ProviderFailed(SvcError):
    """The provider cannot be reached, times out, fails, or sends an invalid response.

    To fix: Retry later or configure `routing.fallbacks`. The log names the cause.
    """

    code = "provider_error"
    status = 502

    def __init__(self, message: str, *, is_reported_by_provider: bool = False, reason: str = "") -> None:
        super().__init__(message)
        self.is_reported_by_provider = is_reported_by_provider
        """Whether the provider reported the error in place of a response."""
        self.reason = reason


class SpeechFailed(SvcError):
    """A speech model or its engine fails, or is missing on this machine.

    To fix: Read the message. `svc doctor` reports missing extras and models.
    """

    code = "asr_error"


class InternalError(SvcError):
    """The gateway or the registry has an internal error.

    To fix: Look up the request id in the log.
    """


class ShuttingDown(InternalError):
    """The process is stopping.

    To fix: Retry after the seconds of `retry-after`.
    """

    status = 503

    @property
    def headers(self) -> Mapping[str, str]:
        return {"retry-after": "1"}


class LimitsUnavailable(InternalError):
    """Redis cannot check the limits of the key, and `limits.on_redis_down` is `refuse`.

    To fix: Retry after the seconds of `retry-after`. `/health?verbose=1` and the log say when Redis responds again.
    If Redis cannot count for this key only, the log names the command that deletes its counters.
    """

    status = 503

    @property
    def headers(self) -> Mapping[str, str]:
        return {"retry-after": "1"}


class BundleNotFound(SvcError):
    """The registry has no such bundle.

    To fix: Check the reference. `svc registry ls` lists the bundles.
    """

    code = "bundle_not_found"
    status = 404
    type = "invalid_request_error"


class InvalidBundle(SvcError):
    """The archive, its metadata or the name of the bundle is invalid.

    To fix: Build the bundle again with `svc bundle pack`.
    """

    code = "invalid_bundle"
    status = 400
    type = "invalid_request_error"


class AlreadyExists(SvcError):
    """Another bundle has this name. Published bundles never change.

    To fix: Publish under another version.
    """

    code = "already_exists"
    status = 409
    type = "invalid_request_error"


class InsufficientStorage(SvcError):
    """The disk is full.

    To fix: Free space on the disk of the server.
    """

    code = "insufficient_storage"
    status = 507


class RegistryFailed(SvcError):
    """A registry cannot be reached, or its data does not match its index.

    To fix: Retry later. The log of the server names the cause.
    """

    code = "registry_error"
    status = 502

    def __init__(self, message: str, *, param: str | None = None, reason: str = "") -> None:
        super().__init__(message, param=param)
        self.reason = reason


class RegistryUnreachable(RegistryFailed):
    """The registry did not respond, or interrupted its response.

    To fix: Check the address of the registry, the network and the proxy, and retry.
    """


class GatewayFailed(SvcError):
    """The SDK cannot reach the gateway, the connection was lost, or the response is invalid.

    To fix: Check the address, and that the gateway runs.
    """

    code = "gateway_error"
    status = 502
    is_outage: bool = False
    """Whether the gateway accepted no connection, or lost it. False if a response is late or invalid."""


class PipelineFailed(SvcError):
    """A stage of a pipeline cannot run.

    To fix: Read the message, which names the stage.
    """

    code = "pipeline_error"


class CommandFailed(SvcError):
    """A command was used correctly and failed.

    To fix: Read the message, which names the next step.
    """

    code = "command_failed"


class UsageError(SvcError):
    """A command or a configuration file is wrong.

    To fix: Correct what the message names.
    """

    code = "usage_error"
    status = 400
