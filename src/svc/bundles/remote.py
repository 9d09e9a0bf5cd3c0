"""A registry, as its clients see it: index, bundles, publishing, over HTTP/1.1. Blocking; one connection per call.

Redirects are followed (a registry on a bucket sends presigned addresses), without the key once the host changes.
"""

from __future__ import annotations

import http.client
import ssl
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urljoin, urlsplit

import msgspec

from svc.bundles.reference import check_name
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
from svc.wire.bundle import Entry

TIMEOUT = 60.0
CONNECT_TIMEOUT = 10.0
MAX_INDEX = 512 << 20
MAX_ANSWER = 1 << 20
REDIRECTS = 5

KEY_MISSING = "this registry asks for a key: put it into SVC_REGISTRY_KEY (publishing takes the scope registry:write)."
KEY_SOURCE = "The key is that of SVC_REGISTRY_KEY, or of SVC_API_KEY where that is unset."

_KNOWN = {
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


class Unreachable(RegistryFailed):
    """The registry did not answer at all."""


class _Problem(msgspec.Struct):
    message: str = ""
    code: str | None = None


class _ProblemBody(msgspec.Struct):
    error: _Problem


class Remote:
    """A registry at an address such as `http://127.0.0.1:8080`. `key` is sent with every request."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = TIMEOUT) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise UsageError(f"{url[:200]!r} is no address of a registry: http://HOST:PORT or https://HOST is.")
        self.url = url.rstrip("/")
        self._key = key
        self._timeout = timeout

    def index(self, model_id: str | None = None) -> list[Entry]:
        """Every usable entry, or those of one model; an unknown model has none. Raises RegistryFailed."""
        path = "/index" if model_id is None else f"/index/{model_id}"
        with self.ask("GET", path, {"accept-encoding": "gzip"}) as answer:
            if answer.status == 404 and model_id is not None:
                return []
            self.expect(answer, 200)
            body = _body(answer)
        try:
            raws = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RegistryFailed(f"{self.url} sent an index that cannot be read: {error}.") from error
        return [entry for key, raw in raws.items() if (entry := _usable(key, raw)) is not None]

    def address(self, entry: Entry) -> str:
        """The bundle's path (interface, "Registry server")."""
        return f"/bundles/{entry.key}/{entry.model_id}.xyb"

    def part(self, entry: Entry, start: int, length: int) -> bytes:
        """Some bytes of a bundle. Raises Unreachable when the server gives no parts, or breaks off."""
        asked = {"range": f"bytes={start}-{start + length - 1}"}
        with self.ask("GET", self.address(entry), asked) as answer:
            self.expect(answer, 200, 206)
            if answer.status != 206:
                raise Unreachable(f"{self.url} gives no parts of its bundles.")
            try:
                return answer.read(length)
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"{self.url} broke off.") from error

    def put(
        self, key: str, size: int, pieces: Iterable[bytes], headers: Mapping[str, str] | None = None
    ) -> tuple[Entry, bool]:
        """Publishes; True when it is new. Raises what the registry answers."""
        model_id = key.partition("/")[0]
        head = {"content-length": str(size), "content-type": "application/octet-stream", **(headers or {})}
        with self.ask("PUT", f"/bundles/{key}/{model_id}.xyb", head, pieces) as answer:
            self.expect(answer, 200, 201)
            return msgspec.json.decode(answer.read(MAX_ANSWER), type=Entry), answer.status == 201

    def set_yanked(self, key: str, yanked: bool) -> Entry:
        """Withdraws a bundle, or takes that back."""
        with self.ask("POST", f"/bundles/{key}/{'yank' if yanked else 'unyank'}", {"content-length": "0"}) as answer:
            self.expect(answer, 200)
            return msgspec.json.decode(answer.read(MAX_ANSWER), type=Entry)

    @contextmanager
    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: Iterable[bytes] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """One request; the answer's body is read by the caller. Raises Unreachable."""
        target = self.url + path
        for _ in range(REDIRECTS + 1):
            connection, selector = self._connection(target)
            try:
                answer = self._send(connection, method, selector, self._headers(target, headers), body)
                location = answer.headers.get("location")
                if answer.status in (301, 302, 303, 307, 308) and location and body is None:
                    target = urljoin(target, location)
                    continue
                yield answer
                return
            finally:
                connection.close()
        raise RegistryFailed(f"{self.url} redirects without end.")

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        selector: str,
        headers: Mapping[str, str],
        body: Iterable[bytes] | None,
    ) -> http.client.HTTPResponse:
        try:
            connection.timeout = CONNECT_TIMEOUT
            connection.connect()
            connection.sock.settimeout(self._timeout)
            try:
                connection.request(method, selector, body=body, headers=dict(headers))
            except (BrokenPipeError, ConnectionResetError):
                if body is None:
                    raise
                # It refused early: the answer may be there to read.
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"The registry {self.url} cannot be reached: {reason}.") from error

    def _connection(self, target: str) -> tuple[http.client.HTTPConnection, str]:
        parts = urlsplit(target)
        host, selector = parts.hostname or "", parts.path + (f"?{parts.query}" if parts.query else "")
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, parts.port, context=ssl.create_default_context()), selector
        if parts.scheme != "http":
            raise RegistryFailed(f"{self.url} redirects to something that is no web address.")
        return http.client.HTTPConnection(host, parts.port), selector

    def _headers(self, target: str, headers: Mapping[str, str]) -> dict[str, str]:
        own = urlsplit(self.url)
        there = urlsplit(target)
        ours = {"user-agent": "svc", "accept-encoding": "identity", **headers}
        if self._key and (own.scheme, own.netloc) == (there.scheme, there.netloc):
            ours["authorization"] = f"Bearer {self._key}"
        return ours

    def expect(self, answer: http.client.HTTPResponse, *statuses: int) -> None:
        """Raises the registry's own error unless the status is one of these."""
        if answer.status not in statuses:
            raise self._error(answer)

    def _error(self, answer: http.client.HTTPResponse) -> SvcError:
        try:
            problem = msgspec.json.decode(answer.read(MAX_ANSWER), type=_ProblemBody).error
        except (msgspec.DecodeError, OSError, http.client.HTTPException):
            problem = _Problem()
        kind = _KNOWN.get(problem.code or "", RegistryFailed)
        said = problem.message or f"it answered with status {answer.status}"
        if kind is AuthenticationFailed:  # without a key the server speaks of headers, which nobody sets by hand here
            said = f"{said} {KEY_SOURCE}" if self._key else KEY_MISSING
        return kind(f"{self.url}: {said}")


def _usable(key: str, raw: msgspec.Raw) -> Entry | None:
    """Entries that we cannot read are no reason to refuse the others."""
    try:
        entry = msgspec.json.decode(raw, type=Entry)
        check_name("model_id", entry.model_id)
        check_name("version", entry.version)
        check_name("platform", entry.target)
    except (msgspec.DecodeError, InvalidRequest):
        return None
    return entry if entry.key == key else None


def _body(answer: http.client.HTTPResponse) -> bytes:
    try:
        data = answer.read(MAX_INDEX + 1)
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable("The registry broke off while it sent its index.") from error
    if answer.headers.get("content-encoding", "").lower() == "gzip":
        unpacking = zlib.decompressobj(wbits=31)
        try:
            data = unpacking.decompress(data, MAX_INDEX + 1)
        except zlib.error as error:
            raise RegistryFailed("The registry sent an index that cannot be unpacked.") from error
    if len(data) > MAX_INDEX:
        raise RegistryFailed("The registry's index is too large.")
    return data
