"""Open the bucket of `SVC_BLOB_URL`, and describe the errors of the storage server. Needs the extra `s3`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from svc.errors import UsageError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

CONNECT_TIMEOUT = timedelta(seconds=5)
RETRY_TIMEOUT = timedelta(seconds=20)
"""The library's 180 s are longer than a client waits for a response, which is 60 s."""
CHECK_TIMEOUT = timedelta(seconds=5)
MAX_REASON_LENGTH = 300

_BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_S3_ERROR = re.compile(r"(.*?)<\?xml.*?<Code>([^<]*)</Code>\s*(?:<Message>([^<]*)</Message>)?", re.DOTALL)
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def open_bucket(url: str, environ: Mapping[str, str], *, is_check: bool = False) -> Any:
    """Return the store of s3://BUCKET/PREFIX. Raises UsageError for an invalid URL or endpoint.

    `is_check` is for a single request that must fail fast, without retries.
    """
    bucket, prefix = _parse_bucket_url(url)
    options: ClientConfig = {"allow_http": _allows_http(environ), "connect_timeout": CONNECT_TIMEOUT}
    retry_config: RetryConfig = {"retry_timeout": RETRY_TIMEOUT}
    if is_check:
        options["timeout"] = CHECK_TIMEOUT
        retry_config = {"max_retries": 0, "retry_timeout": CHECK_TIMEOUT}
    try:
        return S3Store(bucket, prefix=prefix, client_options=options, retry_config=retry_config)
    except (ValueError, BaseError) as error:
        raise UsageError(f"The bucket {url} cannot be used: {error_reason(error)}") from error


def error_reason(error: Exception) -> str:
    """Return the code and the message of the server, else the library's first line, and what to check."""
    text = str(error).partition("\n\nDebug source:")[0]
    if match := _S3_ERROR.match(text):
        reason = f"{match[2]}: {match[3]}" if match[3] else match[2]
        if "status code: " in match[1]:
            reason = f"status {match[1].rpartition('status code: ')[2].rstrip(': ')}: {reason}"
    else:
        reason = text.partition("\n")[0]
    hint = _hint(error, text)
    return reason[:MAX_REASON_LENGTH] + (f" ({hint})" if hint else "")


def _hint(error: Exception, text: str) -> str:
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and the permissions of the bucket"
    if "169.254.169.254" in text:
        return "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: without them, a role of the machine is needed"
    if "error sending request" in text:
        return "check AWS_ENDPOINT_URL and the network"
    return ""


def _parse_bucket_url(url: str) -> tuple[str, str | None]:
    """Return the bucket and the prefix. Raises UsageError."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not url.startswith("s3://") or not _BUCKET_NAME.fullmatch(bucket):
        raise UsageError(f"{url!r} is not the URL of a bucket, such as s3://BUCKET/PREFIX.")
    if "?" in prefix or "#" in prefix:
        raise UsageError(f"The prefix of {url!r} has '?' or '#'. Use another: servers and tools cut it there.")
    return bucket, prefix.strip("/") or None


def _allows_http(environ: Mapping[str, str]) -> bool:
    """Return whether the endpoint has no TLS. Raises UsageError for an endpoint that is not a URL."""
    name = next((name for name in _ENDPOINT_VARIABLES if environ.get(name)), None)
    if name is None:
        return False
    try:
        parts = urlsplit(environ[name])
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_url = False
    if not is_url:
        # Such an endpoint makes the library panic at the first request.
        raise UsageError(f"{name} is {environ[name]!r}, which is not a URL, such as https://HOST or http://HOST:PORT.")
    return parts.scheme == "http"
