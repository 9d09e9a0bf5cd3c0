"""The routes of the registry but for reading bundles, which is the door's; errors have the gateway's shape.

PUT sends the bundle; its signature, if there is one, comes as the header `x-svc-signature: <key> <value>`, both base64.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from svc import __version__
from svc.bundles.reference import check_name
from svc.errors import (
    AlreadyExists,
    BundleNotFound,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    SvcError,
)
from svc.loopback import host_values, is_local
from svc.registry import ranges
from svc.registry.catalog import Body, is_served, served_path
from svc.registry.desk import Desk
from svc.registry.metrics import Counted
from svc.stores.bundles.base import Draft
from svc.stores.bundles.spool import Spool
from svc.wire.bundle import Entry, Signature, shown
from svc.wire.problem import encode_problem

log = logging.getLogger("svc.registry")

BATCH = 1 << 20
HASH_SECONDS = 10.0
"""An index waits so many seconds for missing hashes. Then it is sent with `null` for the rest."""
SILENCE_SECONDS = 60.0
"""A publisher that sends nothing for so long has gone."""

Handler = Callable[[Request], Awaitable[Response]]


def application(desk: Desk) -> Starlette:
    """The ASGI application."""
    routes = Routes(desk)
    bundle = "/bundles/{model_id}/{version}/{platform}"
    return Starlette(
        routes=[
            Route("/health", routes.health, methods=["GET"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/index", routes.index, methods=["GET"]),
            Route("/index/{model_id}", routes.index_of, methods=["GET"]),
            Route(bundle + "/yank", routes.yank, methods=["POST"]),
            Route(bundle + "/unyank", routes.unyank, methods=["POST"]),
            Route(bundle + "/{file}", routes.file, methods=["GET", "PUT"]),
        ],
        middleware=[Middleware(Counted, counters=desk.counters)],
        exception_handlers={
            SvcError: _refuse,
            HTTPException: _refuse_http,
            ClientDisconnect: _left,
            Exception: _fail,
        },
    )


class Routes:
    """The handlers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def health(self, request: Request) -> Response:
        return _json({"status": "ok", "version": __version__, "service": "svc-registry"})

    async def metrics(self, request: Request) -> Response:
        if not is_local(request.scope):
            await self._desk.may_watch(request.headers.get("authorization", ""))
        bundles = len(await asyncio.to_thread(self._desk.store.entries))
        page = self._desk.counters.text(bundles)
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _may_read(self, request: Request) -> None:
        authorization = request.headers.get("authorization", "")
        await self._desk.may_read(authorization)
        await self._desk.check_host(host_values(request.scope), authorization)

    async def index(self, request: Request) -> Response:
        await self._may_read(request)
        await self._look()
        return self._index(request, await self._desk.catalog.index())

    async def index_of(self, request: Request) -> Response:
        await self._may_read(request)
        model_id = check_name("model_id", request.path_params["model_id"])
        await self._look()
        return self._index(request, await self._desk.catalog.index_of(model_id))

    async def _look(self) -> None:
        """Takes in what another tool has written, with the hashes that it left out."""
        await asyncio.to_thread(self._desk.refresh)
        await self._desk.hashing.settle(HASH_SECONDS)

    def _index(self, request: Request, body: Body) -> Response:
        data, etag = body.form(_takes_gzip(request.headers.get("accept-encoding", "")))
        scope = "private" if self._desk.private else "public"
        headers = {"etag": etag, "cache-control": f"{scope}, no-cache", "vary": "accept-encoding"}
        asked = request.headers.get("if-none-match", "")
        if asked and any(ranges.matches(asked, body.form(packed)[1]) for packed in (False, True)):
            return Response(status_code=304, headers=headers)
        if data is body.packed:
            headers["content-encoding"] = "gzip"
        return Response(data, media_type="application/json", headers=headers)

    async def file(self, request: Request) -> Response:
        """One route, so that a refusal of other methods names both."""
        return await (self.put if request.method == "PUT" else self.get)(request)

    async def get(self, request: Request) -> Response:
        """Only what the door left: requests sent in advance, names that cannot be, and stores without files."""
        await self._may_read(request)
        draft = _draft(request)
        entry = await self._desk.entry(draft.key)
        etag = f'"sha256:{entry.sha256}"'
        part = ranges.choose(
            entry.size_bytes,
            etag,
            range_=request.headers.get("range", "") if request.method == "GET" else "",
            if_range=request.headers.get("if-range", ""),
            if_none_match=request.headers.get("if-none-match", ""),
        )
        if request.method == "GET" and part.status != 304:
            address = await asyncio.to_thread(self._desk.store.address, entry)
            if address is not None:
                return RedirectResponse(address, 307, headers={"cache-control": "no-store", "etag": etag})
        return self._part(request, entry, etag, part)

    def _part(self, request: Request, entry: Entry, etag: str, part: ranges.Part) -> Response:
        scope = "private" if self._desk.private else "public"
        headers = {
            "etag": etag,
            "accept-ranges": "bytes",
            "cache-control": f"{scope}, max-age=31536000, immutable",
        }
        if part.status == 206:
            headers["content-range"] = f"bytes {part.start}-{part.end - 1}/{entry.size_bytes}"
        elif part.status == 416:
            headers["content-range"] = f"bytes */{entry.size_bytes}"
        if part.status in (304, 416):
            return Response(status_code=part.status, headers=headers)
        headers["content-length"] = str(part.end - part.start)
        if request.method == "HEAD":
            return Response(status_code=part.status, headers=headers, media_type="application/octet-stream")
        pieces: Iterator[bytes] = self._desk.store.read(entry, part.start, part.end)
        return StreamingResponse(pieces, part.status, headers, media_type="application/octet-stream")

    async def put(self, request: Request) -> Response:
        await self._desk.may_write(request.headers.get("authorization", ""))
        draft = _draft(request, _signatures(request.headers.getlist("x-svc-signature")))
        size = _length(request.headers.get("content-length"))
        known = await asyncio.to_thread(self._desk.store.find, draft.key)
        if known is not None and size is not None and size != known.size_bytes:
            raise AlreadyExists(f"{draft.key} is published already, with other bytes; choose another version.")
        spool = await asyncio.to_thread(self._desk.store.spool, size)
        try:
            await _receive(request, spool)
            entry, created = await asyncio.to_thread(self._desk.store.publish, spool, draft)
        finally:
            await asyncio.to_thread(spool.close)
        self._desk.counters.published += created
        return _json(shown(entry, served_path(entry)), 201 if created else 200)

    async def yank(self, request: Request) -> Response:
        return await self._set_yanked(request, True)

    async def unyank(self, request: Request) -> Response:
        return await self._set_yanked(request, False)

    async def _set_yanked(self, request: Request, yanked: bool) -> Response:
        await self._desk.may_write(request.headers.get("authorization", ""))
        draft = _draft(request)
        entry = await asyncio.to_thread(self._desk.store.set_yanked, draft.key, yanked)
        return _json(shown(entry, served_path(entry) if is_served(entry) else ""))


async def _receive(request: Request, spool: Spool) -> None:
    """Writes the body to the spool, in batches and in threads."""
    batch = bytearray()
    stream = request.stream().__aiter__()
    while True:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise InvalidRequest("The bundle took too long to arrive.") from None
        if chunk is not None:
            batch += chunk
        if batch and (chunk is None or len(batch) >= BATCH):
            await asyncio.to_thread(spool.write, batch)
            batch = bytearray()
        if chunk is None:
            return


def _draft(request: Request, signatures: tuple[Signature, ...] = ()) -> Draft:
    path = request.path_params
    draft = Draft(path["model_id"], path["version"], path["platform"], signatures)
    draft.check()
    if path.get("file", f"{draft.model_id}.xyb") != f"{draft.model_id}.xyb":
        raise BundleNotFound(f"There is no file {path['file'][:80]} here; a bundle is called {draft.model_id}.xyb.")
    return draft


def _signatures(values: list[str]) -> tuple[Signature, ...]:
    pairs = [value.split() for value in values]
    if len(pairs) > 8 or any(len(pair) != 2 or len("".join(pair)) > 200 for pair in pairs):
        raise InvalidRequest("x-svc-signature is a key and a value, both in base64.")
    return tuple(Signature(key, value) for key, value in pairs)


def _length(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _takes_gzip(accept: str) -> bool:
    """Whether an Accept-Encoding header allows gzip."""
    for item in accept.lower().split(","):
        name, _, weight = item.replace(" ", "").partition(";q=")
        if name in ("gzip", "*") and weight not in ("0", "0.0", "0.00", "0.000"):
            return True
    return False


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _refuse(request: Request, error: Exception) -> Response:
    problem = error if isinstance(error, SvcError) else InternalError("Something went wrong here.")
    return Response(encode_problem(problem), problem.status, dict(problem.headers), "application/json")


async def _refuse_http(request: Request, error: Exception) -> Response:
    """Starlette's own refusals: no such path, wrong method."""
    status = getattr(error, "status_code", 500)
    if status == 405:
        given = (getattr(error, "headers", None) or {}).get("Allow", "")
        allow = ", ".join(sorted(given.split(", ")))  # they come from a set
        return await _refuse(
            request, MethodNotAllowed(f"{request.url.path} does not take {request.method}.", allow=allow)
        )
    if status == 404:
        return await _refuse(request, NotFound(f"There is no {request.url.path[:200]} here."))
    return await _refuse(request, InvalidRequest("The request cannot be understood."))


async def _left(_: Request, __: Exception) -> Response:
    """Nobody reads the answer; without one the server would call it a fault, and log where."""
    log.info("a publisher left before it had sent everything")
    return Response(status_code=400)


async def _fail(request: Request, error: Exception) -> Response:
    log.error("a fault while answering %s %s", request.method, request.url.path, exc_info=error)
    return await _refuse(request, InternalError("Something went wrong here; the log has it."))
