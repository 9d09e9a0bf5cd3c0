"""Read and publish bundles at a registry over HTTP/1.1. Blocking, with one connection per call.

Redirects are followed, since a registry with a bucket sends presigned URLs. Only the registry's origin gets the key.
"""

from __future__ import annotations

import http.client
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import msgspec

from svc.bundles import http_client, index_parser
from svc.errors import (
    AlreadyExists,
    AuthenticationFailed,
    BundleNotFound,
    InsufficientStorage,
    InvalidBundle,
    InvalidRequest,
    PermissionDenied,
    RegistryFailed,
    SvcError,
    UsageError,
)
from svc.wire.bundle import BundleEntry

log = logging.getLogger("svc.registry")

REGISTRY_TIMEOUT_SECONDS = 60.0
REGISTRY_CONNECT_TIMEOUT_SECONDS = 10.0
MAX_INDEX_BYTES = 64 << 20
"""Maximum bytes of an unpacked index: over 200,000 bundles."""
MAX_INDEX_COMPRESSION_RATIO = 100
RATIO_EXEMPT_INDEX_BYTES = 4 << 20
"""Beyond this size, the compression ratio of an index is limited. A typical index has a ratio of ten."""
INDEX_READ_BYTES = 64 << 10
INDEX_DEADLINE_SECONDS = 300.0
"""Time limit of an index download, however steadily bytes arrive."""
MAX_REGISTRY_RESPONSE_BYTES = 1 << 20
MAX_REGISTRY_REDIRECTS = 5

KEY_MISSING_HINT = "this registry needs a key: set SVC_REGISTRY_KEY (publishing needs the scope registry:write)."
KEY_SOURCE_HINT = "The key comes from SVC_REGISTRY_KEY, else from SVC_API_KEY."

_ERRORS_BY_CODE = {
    error.code: error
    for error in (
        AlreadyExists,
        AuthenticationFailed,
        BundleNotFound,
        InsufficientStorage,
        InvalidBundle,
        InvalidRequest,
        PermissionDenied,
    )
}


class RegistryUnreachable(RegistryFailed):
    """The registry did not respond."""


class _RegistryErrorDetail(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _RegistryErrorBody(msgspec.Struct):
    error: _RegistryErrorDetail


class RegistryClient:
    """A registry with a URL such as `http://127.0.0.1:8080`. `key` is sent with every request."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = REGISTRY_TIMEOUT_SECONDS) -> None:
        try:
            self._origin = http_client.parse_origin(url)
            is_invalid = urlsplit(url).username is not None
        except RegistryFailed:
            is_invalid = True
        if is_invalid:
            raise UsageError(f"{url[:200]!r} is not the URL of a registry, such as http://HOST:PORT or https://HOST.")
        self.url = url.rstrip("/")
        self._key = key
        self._timeout = timeout

    def fetch_index(self, model_id: str | None = None, warn: Callable[[str], None] = log.warning) -> list[BundleEntry]:
        """Return every valid entry, or those of one model. An unknown model has none.

        `warn` is called with a message about skipped entries. Raises RegistryFailed.
        """
        path = "/index" if model_id is None else f"/index/{model_id}"
        with self.request("GET", path, {"accept-encoding": "gzip"}) as response:
            if response.status == 404 and model_id is not None:
                return []
            self.check_status(response, 200)
            body = _read_index(response)
        try:
            raw_index = index_parser.split_index(body)
        except ValueError as error:
            raise RegistryFailed(f"{self.url} sent an index that cannot be decoded: {error}.") from error
        entries, skipped = [], raw_index.errors
        for key, raw in raw_index.entries.items():
            try:
                entries.append(index_parser.parse_entry(key, raw))
            except ValueError as error:
                skipped[key] = str(error)
        if skipped:
            warn(f"Invalid entries in the index of {self.url} are skipped: {index_parser.describe_skipped(skipped)}")
        return entries

    def bundle_path(self, entry: BundleEntry) -> str:
        """Return the URL path of the bundle."""
        return f"/bundles/{entry.key}/{entry.model_id}.xyb"

    def read_range(self, entry: BundleEntry, start: int, length: int) -> bytes:
        """Read a byte range of a bundle. Raises RegistryUnreachable if the server ignores ranges or disconnects."""
        range_header = {"range": f"bytes={start}-{start + length - 1}"}
        with self.request("GET", self.bundle_path(entry), range_header) as response:
            self.check_status(response, 200, 206)
            if response.status != 206:
                raise RegistryUnreachable(f"{self.url} does not support range requests.")
            return self._read(response, length)

    def publish(
        self, key: str, size: int, chunks: Iterable[bytes], headers: Mapping[str, str] | None = None
    ) -> tuple[BundleEntry, bool]:
        """Publish a bundle. Returns its entry, and whether it is new. Raises the registry's error."""
        model_id = key.partition("/")[0]
        request_headers = {"content-length": str(size), "content-type": "application/octet-stream", **(headers or {})}
        with self.request("PUT", f"/bundles/{key}/{model_id}.xyb", request_headers, chunks) as response:
            self.check_status(response, 200, 201)
            return self._decode_entry(response), response.status == 201

    def set_yanked(self, key: str, yanked: bool) -> BundleEntry:
        """Set or clear the yanked flag of a bundle."""
        with self.request(
            "POST", f"/bundles/{key}/{'yank' if yanked else 'unyank'}", {"content-length": "0"}
        ) as response:
            self.check_status(response, 200)
            return self._decode_entry(response)

    def _decode_entry(self, response: http.client.HTTPResponse) -> BundleEntry:
        try:
            return msgspec.json.decode(self._read(response, MAX_REGISTRY_RESPONSE_BYTES), type=BundleEntry)
        except (ValueError, RecursionError) as error:
            raise RegistryFailed(f"{self.url} sent a response that cannot be decoded: {error}.") from error

    def _read(self, response: http.client.HTTPResponse, max_bytes: int) -> bytes:
        try:
            return response.read(max_bytes)
        except http_client.HTTP_CONNECTION_ERRORS as error:
            raise RegistryUnreachable(
                f"{self.url} closed the connection early: {http_client.describe_error(error)}."
            ) from error

    @contextmanager
    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: Iterable[bytes] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send one request. The caller reads the response body. Raises RegistryUnreachable."""
        url = self.url + path
        for _ in range(MAX_REGISTRY_REDIRECTS + 1):
            connection, request_target = http_client.create_connection(url, REGISTRY_CONNECT_TIMEOUT_SECONDS)
            try:
                response = self._send(connection, method, request_target, self._request_headers(url, headers), body)
                location = response.headers.get("location")
                if response.status in http_client.REDIRECT_STATUSES and location and body is None:
                    url = http_client.resolve_redirect(url, location)
                    continue
                yield response
                return
            finally:
                connection.close()
        raise RegistryFailed(f"{self.url} redirects too often.")

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        request_target: str,
        headers: Mapping[str, str],
        body: Iterable[bytes] | None,
    ) -> http.client.HTTPResponse:
        try:
            connection.connect()
            connection.sock.settimeout(self._timeout)
            try:
                connection.request(method, request_target, body=body, headers=dict(headers))
            except (BrokenPipeError, ConnectionResetError):
                if body is None:
                    raise
                # The server may have sent an error response before it closed the connection.
            return connection.getresponse()
        except http_client.HTTP_CONNECTION_ERRORS as error:
            raise RegistryUnreachable(
                f"The registry {self.url} cannot be reached: {http_client.describe_error(error)}."
            ) from error

    def _request_headers(self, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        request_headers = {"user-agent": "svc", "accept-encoding": "identity", **headers}
        if self._key and http_client.parse_origin(url) == self._origin:
            request_headers["authorization"] = f"Bearer {self._key}"
        return request_headers

    def check_status(self, response: http.client.HTTPResponse, *statuses: int) -> None:
        """Raise the registry's error unless the status is one of these."""
        if response.status not in statuses:
            raise self._decode_error(response)

    def _decode_error(self, response: http.client.HTTPResponse) -> SvcError:
        try:
            detail = msgspec.json.decode(
                self._read(response, MAX_REGISTRY_RESPONSE_BYTES), type=_RegistryErrorBody
            ).error
        except (ValueError, RecursionError, RegistryUnreachable):
            detail = _RegistryErrorDetail()
        error_class = _ERRORS_BY_CODE.get(detail.code or "", RegistryFailed)
        message = http_client.sanitize_text(detail.message, 2000) or f"it returned status {response.status}"
        if error_class is AuthenticationFailed:  # the server's message names headers, which users do not set
            message = f"{message} {KEY_SOURCE_HINT}" if self._key else KEY_MISSING_HINT
        return error_class(f"{self.url}: {message}")


def _read_index(response: http.client.HTTPResponse) -> bytes:
    """Return the decompressed index. Raises RegistryUnreachable, and RegistryFailed if it is too large."""
    gzipped = response.headers.get("content-encoding", "").strip().lower() == "gzip"
    decompressor = zlib.decompressobj(wbits=31) if gzipped else None
    data, received_bytes = bytearray(), 0
    try:
        for chunk in _iter_chunks(response):
            received_bytes += len(chunk)
            max_bytes = _max_unpacked_bytes(received_bytes) if gzipped else MAX_INDEX_BYTES
            data += decompressor.decompress(chunk, max_bytes - len(data) + 1) if decompressor else chunk
            if len(data) > max_bytes:
                raise RegistryFailed("The registry's index is rejected: it is too large.")
    except zlib.error as error:
        raise RegistryFailed("The registry sent an index that cannot be decompressed.") from error
    except http_client.HTTP_CONNECTION_ERRORS as error:
        raise RegistryUnreachable(
            f"The registry closed the connection while it sent its index: {http_client.describe_error(error)}."
        ) from error
    if decompressor and not decompressor.eof:
        raise RegistryUnreachable("The registry closed the connection while it sent its index.")
    return bytes(data)


def _iter_chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the body in chunks. Raises OSError on disconnect or timeout."""
    # Python 3.11 waits for more than Content-Length bytes, so count the rest here.
    bytes_left, deadline = response.length, time.monotonic() + INDEX_DEADLINE_SECONDS
    while bytes_left != 0 and (
        chunk := response.read1(INDEX_READ_BYTES if bytes_left is None else min(INDEX_READ_BYTES, bytes_left))
    ):
        bytes_left = None if bytes_left is None else bytes_left - len(chunk)
        yield chunk
        if time.monotonic() > deadline:
            raise TimeoutError(f"it took longer than {INDEX_DEADLINE_SECONDS:g} s")
    if bytes_left:
        raise ConnectionError(f"{bytes_left} bytes are missing")


def _max_unpacked_bytes(gzipped_bytes: int) -> int:
    """Return the maximum decompressed size of an index."""
    return min(MAX_INDEX_BYTES, max(RATIO_EXEMPT_INDEX_BYTES, MAX_INDEX_COMPRESSION_RATIO * gzipped_bytes))
