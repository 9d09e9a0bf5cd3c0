"""A registry, as its clients see it: index, bundles, publishing, over HTTP/1.1. Blocking; one connection per call.

Redirects are followed (a registry on a bucket sends presigned addresses). The key goes to the registry's origin only.
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

from svc.bundles import listing, web
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

log = logging.getLogger("svc.registry")

TIMEOUT = 60.0
CONNECT_TIMEOUT = 10.0
MAX_INDEX = 64 << 20
"""Bytes of an index once it is unpacked: 200,000 bundles and more."""
MAX_RATIO = 100
FREE_INDEX = 4 << 20
"""An index beyond this unpacks to at most `MAX_RATIO` times its size. That of a registry does to ten times."""
PIECE = 64 << 10
INDEX_SECONDS = 300.0
"""An index that takes longer is given up, however steadily it trickles."""
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
        try:
            self._origin = web.origin(url)
            named = urlsplit(url).username is not None
        except RegistryFailed:
            named = True
        if named:
            raise UsageError(f"{url[:200]!r} is no address of a registry: http://HOST:PORT or https://HOST is.")
        self.url = url.rstrip("/")
        self._key = key
        self._timeout = timeout

    def index(self, model_id: str | None = None, warn: Callable[[str], None] = log.warning) -> list[Entry]:
        """Every usable entry, or those of one model; an unknown model has none. `warn` is told which were skipped.

        Raises RegistryFailed.
        """
        path = "/index" if model_id is None else f"/index/{model_id}"
        with self.ask("GET", path, {"accept-encoding": "gzip"}) as answer:
            if answer.status == 404 and model_id is not None:
                return []
            self.expect(answer, 200)
            body = _body(answer)
        try:
            found = listing.split(body)
        except ValueError as error:
            raise RegistryFailed(f"{self.url} sent an index that cannot be read: {error}.") from error
        entries, skipped = [], found.damaged
        for key, raw in found.members.items():
            try:
                entries.append(listing.parse(key, raw))
            except ValueError as error:
                skipped[key] = str(error)
        if skipped:
            warn(f"Entries of the index of {self.url} cannot be used: {listing.describe(skipped)}")
        return entries

    def address(self, entry: Entry) -> str:
        """The bundle's path."""
        return f"/bundles/{entry.key}/{entry.model_id}.xyb"

    def part(self, entry: Entry, start: int, length: int) -> bytes:
        """Some bytes of a bundle. Raises Unreachable when the server gives no parts, or breaks off."""
        asked = {"range": f"bytes={start}-{start + length - 1}"}
        with self.ask("GET", self.address(entry), asked) as answer:
            self.expect(answer, 200, 206)
            if answer.status != 206:
                raise Unreachable(f"{self.url} gives no parts of its bundles.")
            return self._read(answer, length)

    def put(
        self, key: str, size: int, pieces: Iterable[bytes], headers: Mapping[str, str] | None = None
    ) -> tuple[Entry, bool]:
        """Publishes; True when it is new. Raises what the registry answers."""
        model_id = key.partition("/")[0]
        head = {"content-length": str(size), "content-type": "application/octet-stream", **(headers or {})}
        with self.ask("PUT", f"/bundles/{key}/{model_id}.xyb", head, pieces) as answer:
            self.expect(answer, 200, 201)
            return self._entry(answer), answer.status == 201

    def set_yanked(self, key: str, yanked: bool) -> Entry:
        """Withdraws a bundle, or takes that back."""
        with self.ask("POST", f"/bundles/{key}/{'yank' if yanked else 'unyank'}", {"content-length": "0"}) as answer:
            self.expect(answer, 200)
            return self._entry(answer)

    def _entry(self, answer: http.client.HTTPResponse) -> Entry:
        try:
            return msgspec.json.decode(self._read(answer, MAX_ANSWER), type=Entry)
        except (ValueError, RecursionError) as error:
            raise RegistryFailed(f"{self.url} sent an answer that cannot be read: {error}.") from error

    def _read(self, answer: http.client.HTTPResponse, most: int) -> bytes:
        try:
            return answer.read(most)
        except web.FAILURES as error:
            raise Unreachable(f"{self.url} broke off: {web.reason(error)}.") from error

    @contextmanager
    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: Iterable[bytes] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """One request; the answer's body is read by the caller. Raises Unreachable."""
        target = self.url + path
        for _ in range(REDIRECTS + 1):
            connection, selector = web.connect(target, CONNECT_TIMEOUT)
            try:
                answer = self._send(connection, method, selector, self._headers(target, headers), body)
                location = answer.headers.get("location")
                if answer.status in web.REDIRECTS and location and body is None:
                    target = web.follow(target, location)
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
            connection.connect()
            connection.sock.settimeout(self._timeout)
            try:
                connection.request(method, selector, body=body, headers=dict(headers))
            except (BrokenPipeError, ConnectionResetError):
                if body is None:
                    raise
                # It refused early: the answer may be there to read.
            return connection.getresponse()
        except web.FAILURES as error:
            raise Unreachable(f"The registry {self.url} cannot be reached: {web.reason(error)}.") from error

    def _headers(self, target: str, headers: Mapping[str, str]) -> dict[str, str]:
        ours = {"user-agent": "svc", "accept-encoding": "identity", **headers}
        if self._key and web.origin(target) == self._origin:
            ours["authorization"] = f"Bearer {self._key}"
        return ours

    def expect(self, answer: http.client.HTTPResponse, *statuses: int) -> None:
        """Raises the registry's own error unless the status is one of these."""
        if answer.status not in statuses:
            raise self._error(answer)

    def _error(self, answer: http.client.HTTPResponse) -> SvcError:
        try:
            problem = msgspec.json.decode(self._read(answer, MAX_ANSWER), type=_ProblemBody).error
        except (ValueError, RecursionError, Unreachable):
            problem = _Problem()
        kind = _KNOWN.get(problem.code or "", RegistryFailed)
        said = web.printable(problem.message, 2000) or f"it answered with status {answer.status}"
        if kind is AuthenticationFailed:  # without a key the server speaks of headers, which nobody sets by hand here
            said = f"{said} {KEY_SOURCE}" if self._key else KEY_MISSING
        return kind(f"{self.url}: {said}")


def _body(answer: http.client.HTTPResponse) -> bytes:
    """The index, unpacked. Raises Unreachable, RegistryFailed when it is too large."""
    gzipped = answer.headers.get("content-encoding", "").strip().lower() == "gzip"
    unpacking = zlib.decompressobj(wbits=31) if gzipped else None
    data, came = bytearray(), 0
    try:
        for piece in _pieces(answer):
            came += len(piece)
            allowed = _allowed(came) if gzipped else MAX_INDEX
            data += unpacking.decompress(piece, allowed - len(data) + 1) if unpacking else piece
            if len(data) > allowed:
                raise RegistryFailed("The registry's index is refused: it is too large.")
    except zlib.error as error:
        raise RegistryFailed("The registry sent an index that cannot be unpacked.") from error
    except web.FAILURES as error:
        raise Unreachable(f"The registry broke off while it sent its index: {web.reason(error)}.") from error
    if unpacking and not unpacking.eof:
        raise Unreachable("The registry broke off while it sent its index.")
    return bytes(data)


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body as it comes. Raises OSError when it breaks off or takes too long."""
    # Python 3.11 waits for more than the length that was announced, so the rest is counted here.
    left, deadline = answer.length, time.monotonic() + INDEX_SECONDS
    while left != 0 and (piece := answer.read1(PIECE if left is None else min(PIECE, left))):
        left = None if left is None else left - len(piece)
        yield piece
        if time.monotonic() > deadline:
            raise TimeoutError(f"it took longer than {INDEX_SECONDS:g} s")
    if left:
        raise ConnectionError(f"{left} bytes are missing")


def _allowed(packed: int) -> int:
    """To how many bytes so many packed ones may unpack."""
    return min(MAX_INDEX, max(FREE_INDEX, MAX_RATIO * packed))
