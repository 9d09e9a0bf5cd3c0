"""The errors of the product, one tree; each class knows its code, its HTTP status and its type.

SvcError
├── InvalidRequest          invalid_request        400
│   ├── TooLarge            invalid_request        413
│   ├── MisdirectedRequest  invalid_request        421
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
│   └── ShuttingDown        internal_error         503
├── BundleNotFound          bundle_not_found       404
├── InvalidBundle           invalid_bundle         400
├── AlreadyExists           already_exists         409
├── InsufficientStorage     insufficient_storage   507
├── RegistryFailed          registry_error         502
├── GatewayFailed           gateway_error          502
├── PipelineFailed          pipeline_error         500
├── CommandFailed           what a command could not do (exit status 1)
└── UsageError              what a person at the command line can mend (exit status 2)

An error carries what its reader may see: no key, no internal address.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Self


class UpstreamError:
    """The upstream's own error, which a client of the upstream's dialect gets unchanged."""

    __slots__ = ("headers", "status", "type")

    def __init__(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self.status = status
        self.type = kind
        self.headers = headers


class SvcError(Exception):
    """What went wrong, for the one who asked. `param` names the field at fault, if there is one."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"
    reason: str = ""
    """For the operator, and without secrets: logs and commands show it beside the message, responses never do."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.request_id: str | None = None
        """On the client's side: the gateway's `x-request-id`."""
        self.upstream: UpstreamError | None = None

    @property
    def http_status(self) -> int:
        """The status of the response."""
        return self.status if self.upstream is None else self.upstream.status

    @property
    def http_headers(self) -> Mapping[str, str]:
        """The headers of the response, the upstream's among them."""
        return self.headers if self.upstream is None else {**self.headers, **self.upstream.headers}

    @property
    def headers(self) -> Mapping[str, str]:
        """Response headers that belong to this error."""
        return {}

    def strip_traceback(self) -> Self:
        """Without the frames that it came through: they hold all that they worked on, even whoever keeps the error."""
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class InvalidRequest(SvcError):
    """The request is malformed, or would be refused by every upstream."""

    code = "invalid_request"
    status = 400
    type = "invalid_request_error"


class TooLarge(InvalidRequest):
    """The body is larger than `gateway.max_body`."""

    status = 413


class MisdirectedRequest(InvalidRequest):
    """The request's `Host` is none that this server answers without a key (RFC 9110, section 15.5.20)."""

    status = 421


class HeadTooLarge(InvalidRequest):
    """The head of a request is larger than `gateway.max_header`, or has too many headers."""

    status = 431


class AuthenticationFailed(SvcError):
    """The key is missing or not known."""

    code = "authentication_error"
    status = 401
    type = "authentication_error"

    @property
    def headers(self) -> Mapping[str, str]:
        return {"www-authenticate": "Bearer"}


class PermissionDenied(SvcError):
    """The key is known and lacks the scope."""

    code = "permission_denied"
    status = 403
    type = "permission_error"


class ModelNotFound(SvcError):
    """The model is not offered, not allowed to this key, or unknown to the upstream."""

    code = "model_not_found"
    status = 404
    type = "invalid_request_error"


class NotFound(SvcError):
    """No such path."""

    code = "not_found"
    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(SvcError):
    """The path exists and takes other methods."""

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
    """A limit of ours, or an upstream's 429 once retries are spent.

    `retry_after` is in seconds. `limit` says which limit was reached: `rpm`, `tpm`, `concurrency`, `budget` or
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
        # Clients read more than 120 s as "never" (wire facts), and 0 as "at once".
        return {"retry-after": str(max(1, min(120, math.ceil(self.retry_after))))}


class ProviderFailed(SvcError):
    """The upstream could not be reached, was too late, failed, or was not understandable."""

    code = "provider_error"
    status = 502

    def __init__(self, message: str, *, is_reported_by_provider: bool = False, reason: str = "") -> None:
        super().__init__(message)
        self.is_reported_by_provider = is_reported_by_provider
        """The provider said so itself, where an answer should have been."""
        self.reason = reason


class SpeechFailed(SvcError):
    """A speech model or its engine failed, or is missing here."""

    code = "asr_error"


class InternalError(SvcError):
    """A fault of ours; the log has it under the request id."""


class ShuttingDown(InternalError):
    """This process ends; another may answer in a second."""

    status = 503

    @property
    def headers(self) -> Mapping[str, str]:
        return {"retry-after": "1"}


class BundleNotFound(SvcError):
    """The registry has no such bundle."""

    code = "bundle_not_found"
    status = 404
    type = "invalid_request_error"


class InvalidBundle(SvcError):
    """The archive or its metadata is not what a bundle must be; also a name that no bundle can have."""

    code = "invalid_bundle"
    status = 400
    type = "invalid_request_error"


class AlreadyExists(SvcError):
    """Another bundle was published under this name; what is published never changes."""

    code = "already_exists"
    status = 409
    type = "invalid_request_error"


class InsufficientStorage(SvcError):
    """The disk has no room for it."""

    code = "insufficient_storage"
    status = 507


class RegistryFailed(SvcError):
    """A registry could not be reached, or what it sent is not what its index promises."""

    code = "registry_error"
    status = 502

    def __init__(self, message: str, *, param: str | None = None, reason: str = "") -> None:
        super().__init__(message, param=param)
        self.reason = reason


class GatewayFailed(SvcError):
    """On the client's side: the gateway cannot be reached, broke off, or answered what no gateway says."""

    code = "gateway_error"
    status = 502


class PipelineFailed(SvcError):
    """A stage of a pipeline cannot do what it is asked; the message says which stage, and why."""

    code = "pipeline_error"


class CommandFailed(SvcError):
    """A command was used rightly and could not be done; the message says what to do next."""

    code = "command_failed"


class UsageError(SvcError):
    """A person at the command line can mend this; the message says how."""

    code = "usage_error"
    status = 400
