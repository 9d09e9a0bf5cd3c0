"""Read and publish bundles at a registry, with httpx2. Blocking, with one connection per call.

Redirects are followed, since a registry with a bucket sends presigned URLs. Other hosts do not get the key.
The servers import this module only for an upstream registry.
"""

from __future__ import annotations

import logging
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import httpx2
import msgspec

from svc.bundles import http_client, index_parser
from svc.bundles.download import REGISTRY_TIMEOUT_SECONDS, BundleSource, DownloadState, PartialFile
from svc.bundles.registry_url import is_server_url
from svc.errors import (
    AlreadyExists,
    AuthenticationFailed,
    BundleNotFound,
    InsufficientStorage,
    InvalidBundle,
    InvalidRequest,
    PermissionDenied,
    RegistryFailed,
    RegistryUnreachable,
    SvcError,
    UsageError,
)
from svc.outbound_http import (
    HTTP_ERRORS,
    checked_environment,
    create_tls_context,
    describe_http_error,
    find_environment_proxy,
    is_tls_error,
)
from svc.wire.bundle import BundleEntry

log = logging.getLogger("svc.registry")

REGISTRY_CONNECT_TIMEOUT_SECONDS = 10.0
MAX_INDEX_BYTES = 64 << 20
"""Maximum bytes of an unpacked index: over 200,000 bundles."""
MAX_INDEX_COMPRESSION_RATIO = 100
RATIO_EXEMPT_INDEX_BYTES = 4 << 20
"""Beyond this size, the compression ratio of an index is limited. A typical index has a ratio of ten."""
INDEX_DEADLINE_SECONDS = 300.0
"""Time limit of an index download, however steadily bytes arrive."""
MAX_REGISTRY_RESPONSE_BYTES = 1 << 20
MAX_REGISTRY_REDIRECTS = 5
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

KEY_MISSING_HINT = "this registry needs a key: set SVC_REGISTRY_KEY (publishing needs the scope registry:write)."
KEY_SOURCE_HINT = "the key comes from SVC_REGISTRY_KEY, else from SVC_API_KEY"

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


class _RegistryErrorDetail(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _RegistryErrorBody(msgspec.Struct):
    error: _RegistryErrorDetail


class RegistryClient:
    """A registry with a URL such as `http://127.0.0.1:8080`. `key` is sent with every request."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = REGISTRY_TIMEOUT_SECONDS) -> None:
        if not is_server_url(url):
            raise UsageError(f"{url[:200]!r} is not the URL of a registry, such as http://HOST:PORT or https://HOST.")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError("The key of the registry, SVC_REGISTRY_KEY, must have printable ASCII characters only.")
        self.url = url.rstrip("/")
        self._key = key
        headers = {"user-agent": "svc", "accept-encoding": "identity"}
        with checked_environment():
            self._http = httpx2.Client(
                headers={**headers, "authorization": f"Bearer {key}"} if key else headers,
                verify=create_tls_context(),
                timeout=httpx2.Timeout(timeout, connect=REGISTRY_CONNECT_TIMEOUT_SECONDS),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
                max_redirects=MAX_REGISTRY_REDIRECTS,
            )

    def fetch_index(self, model_id: str | None = None, warn: Callable[[str], None] = log.warning) -> list[BundleEntry]:
        """Return every valid entry, or those of one model. An unknown model has none.

        `warn` is called with a message about skipped entries. Raises RegistryFailed, and RegistryUnreachable also for
        5xx: a proxy without its registry, or a registry without its bucket.
        """
        path = "/index" if model_id is None else f"/index/{model_id}"
        with self.request("GET", path, {"accept-encoding": "gzip"}) as response:
            if 500 <= response.status_code <= 599:
                raise RegistryUnreachable(self._decode_error(response).message)
            if response.status_code == 404 and model_id is not None:
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

    def bundle_source(self) -> BundleSource:
        """Return the source of this registry's bundles."""
        return HttpBundleSource(self)

    def read_range(self, entry: BundleEntry, start: int, length: int) -> bytes:
        """Read a byte range of a bundle. Raises RegistryUnreachable if the server ignores ranges or disconnects."""
        range_header = {"range": f"bytes={start}-{start + length - 1}"}
        with self.request("GET", self.bundle_path(entry), range_header) as response:
            self.check_status(response, 200, 206)
            if response.status_code != 206:
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
            return self._decode_entry(response), response.status_code == 201

    def set_yanked(self, key: str, yanked: bool) -> BundleEntry:
        """Set or clear the yanked flag of a bundle."""
        with self.request(
            "POST", f"/bundles/{key}/{'yank' if yanked else 'unyank'}", {"content-length": "0"}
        ) as response:
            self.check_status(response, 200)
            return self._decode_entry(response)

    def _decode_entry(self, response: httpx2.Response) -> BundleEntry:
        try:
            return msgspec.json.decode(self._read(response, MAX_REGISTRY_RESPONSE_BYTES), type=BundleEntry)
        except (ValueError, RecursionError) as error:
            raise RegistryFailed(f"{self.url} sent a response that cannot be decoded: {error}.") from error

    def _read(self, response: httpx2.Response, max_bytes: int) -> bytes:
        try:
            return http_client.read_limited(response, max_bytes)
        except HTTP_ERRORS as error:
            raise RegistryUnreachable(
                f"{self.url} closed the connection early: {describe_http_error(error)}."
            ) from error

    @contextmanager
    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: Iterable[bytes] | None = None
    ) -> Iterator[httpx2.Response]:
        """Send one request. The caller reads the response body. Raises RegistryUnreachable."""
        request = self._http.build_request(method, self.url + path, headers=headers, content=body)
        try:
            response = self._http.send(request, stream=True, follow_redirects=method == "GET")
        except httpx2.TooManyRedirects as error:
            raise RegistryFailed(f"{self.url} redirects too often.") from error
        except HTTP_ERRORS as error:
            proxy = find_environment_proxy(str(request.url))
            is_own_failure = isinstance(error, httpx2.ConnectError) and proxy is None and not is_tls_error(error)
            hint = " Check its address, and whether it runs." if is_own_failure else ""
            raise RegistryUnreachable(
                f"The registry {self.url} cannot be reached: {describe_http_error(error, proxy)}.{hint}"
            ) from error
        try:
            yield response
        finally:
            response.close()

    def check_status(self, response: httpx2.Response, *statuses: int) -> None:
        """Raise the registry's error unless the status is one of these."""
        if response.status_code not in statuses:
            raise self._decode_error(response)

    def _decode_error(self, response: httpx2.Response) -> SvcError:
        try:
            detail = msgspec.json.decode(
                self._read(response, MAX_REGISTRY_RESPONSE_BYTES), type=_RegistryErrorBody
            ).error
        except (ValueError, RecursionError, RegistryUnreachable):
            detail = _RegistryErrorDetail()
        error_class = _ERRORS_BY_CODE.get(detail.code or "", RegistryFailed)
        message = http_client.sanitize_text(detail.message, 2000) or f"it returned status {response.status_code}."
        if error_class is AuthenticationFailed:  # the server's message names headers, which users do not set
            message = f"{message.removesuffix('.')} ({KEY_SOURCE_HINT})." if self._key else KEY_MISSING_HINT
        return error_class(f"{self.url}: {message}")


def _read_index(response: httpx2.Response) -> bytes:
    """Return the decompressed index. Raises RegistryUnreachable, and RegistryFailed if it is too large."""
    gzipped = response.headers.get("content-encoding", "").strip().lower() == "gzip"
    decompressor = zlib.decompressobj(wbits=31) if gzipped else None
    data, deadline = bytearray(), time.monotonic() + INDEX_DEADLINE_SECONDS
    try:
        for chunk in response.iter_raw():
            max_bytes = _max_unpacked_bytes(response.num_bytes_downloaded) if gzipped else MAX_INDEX_BYTES
            data += decompressor.decompress(chunk, max_bytes - len(data) + 1) if decompressor else chunk
            if len(data) > max_bytes:
                raise RegistryFailed("The registry's index is rejected: it is too large.")
            if time.monotonic() > deadline:
                raise RegistryUnreachable(f"The registry's index took longer than {INDEX_DEADLINE_SECONDS:g} s.")
    except zlib.error as error:
        raise RegistryFailed("The registry sent an index that cannot be decompressed.") from error
    except HTTP_ERRORS as error:
        raise RegistryUnreachable(
            f"The registry closed the connection while it sent its index: {describe_http_error(error)}."
        ) from error
    if decompressor and not decompressor.eof:
        raise RegistryUnreachable("The registry closed the connection while it sent its index.")
    return bytes(data)


def _max_unpacked_bytes(gzipped_bytes: int) -> int:
    """Return the maximum decompressed size of an index."""
    return min(MAX_INDEX_BYTES, max(RATIO_EXEMPT_INDEX_BYTES, MAX_INDEX_COMPRESSION_RATIO * gzipped_bytes))


class HttpBundleSource:
    """Downloads from a registry over HTTP."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client

    def fetch(self, entry: BundleEntry, start: int, state: DownloadState, partial_file: PartialFile) -> None:
        headers = {}
        if start:
            headers["range"] = f"bytes={start}-"
            if state.etag:
                headers["if-range"] = state.etag
        with self._client.request("GET", self._client.bundle_path(entry), headers) as response:
            if response.status_code == 416:  # the file is shorter than before
                partial_file.restart()
                raise ConnectionError("the registry has a different file now")
            if 500 <= response.status_code <= 599:
                raise ConnectionError(f"the registry returned status {response.status_code}")
            self._client.check_status(response, 200, 206)
            if response.status_code == 200 and start:
                partial_file.restart()
            elif response.status_code == 206:
                _check_range(response, partial_file.size, entry.size_bytes)
            tag = response.headers.get("etag")
            state.etag = tag if tag and tag.startswith('"') and tag.isascii() else None  # a header must be ASCII
            partial_file.save_state()
            try:
                partial_file.receive(response.iter_raw())
            except HTTP_ERRORS as error:
                raise ConnectionError(describe_http_error(error)) from error


def _check_range(response: httpx2.Response, start: int, size: int) -> None:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if match is None or (int(match[1]), int(match[3])) != (start, size):
        raise RegistryFailed("The registry sent a range that was not requested.")
