"""Define the registry's ASGI routes. Downloads of local bundles bypass them. Errors have the gateway's format.

A PUT request may have a signature in the header `x-svc-signature: <key> <value>`, both in base64.
"""

from __future__ import annotations

import asyncio
import itertools
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
from svc.allowed_hosts import host_header_values, is_local_request
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
from svc.registry import ranges
from svc.registry.cors import build_cors_middleware
from svc.registry.index import IndexBody, served_path
from svc.registry.metrics import RequestCounterMiddleware
from svc.registry.service import RegistryService
from svc.stores.bundles.base import BundleDraft, is_served
from svc.stores.bundles.upload import BundleUpload
from svc.telemetry import SCOPE_ERROR_CODE
from svc.wire.bundle import BundleEntry, Signature, entry_for_json, parse_signature_headers
from svc.wire.error import encode_error_body

log = logging.getLogger("svc.registry")

UPLOAD_WRITE_BYTES = 1 << 20
INDEX_HASH_TIMEOUT_SECONDS = 10.0
"""Maximum wait of an index request for missing hashes. The response has `null` for hashes that are still missing."""
UPLOAD_IDLE_TIMEOUT_SECONDS = 60.0
"""Time without data after which an upload is aborted."""

RegistryRouteHandler = Callable[[Request], Awaitable[Response]]


def create_app(service: RegistryService) -> Starlette:
    """Create the ASGI application."""
    routes = RegistryRoutes(service)
    bundle_path = "/bundles/{model_id}/{version}/{platform}"
    return Starlette(
        routes=[
            Route("/health", routes.health, methods=["GET"]),
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/index", routes.index, methods=["GET"]),
            Route("/index/{model_id}", routes.model_index, methods=["GET"]),
            Route(bundle_path + "/yank", routes.yank, methods=["POST"]),
            Route(bundle_path + "/unyank", routes.unyank, methods=["POST"]),
            Route(bundle_path + "/{file}", routes.bundle, methods=["GET", "PUT"]),
        ],
        middleware=[
            Middleware(RequestCounterMiddleware, counters=service.counters, tracer=service.tracer),
            *build_cors_middleware(service.cors_origins),
        ],
        exception_handlers={
            SvcError: _error_response,
            HTTPException: _http_error_response,
            ClientDisconnect: _on_client_disconnect,
            Exception: _on_unhandled_error,
        },
    )


class RegistryRoutes:
    """The request handlers."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    async def health(self, request: Request) -> Response:
        return _json_response({"status": "ok", "version": __version__, "service": "svc-registry"})

    async def metrics(self, request: Request) -> Response:
        if not is_local_request(request.scope):
            await self._service.authorize_metrics(request.headers.get("authorization", ""))
        bundles = len(await asyncio.to_thread(self._service.store.entries))
        tracer = self._service.tracer
        page = self._service.counters.render(bundles, {} if tracer is None else tracer.values())
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _authorize_read(self, request: Request) -> None:
        authorization = request.headers.get("authorization", "")
        await self._service.authorize_read(authorization)
        await self._service.check_host(host_header_values(request.scope), authorization)

    async def index(self, request: Request) -> Response:
        await self._authorize_read(request)
        await self._refresh_index()
        return self._index_response(request, await self._service.index.get_body())

    async def model_index(self, request: Request) -> Response:
        await self._authorize_read(request)
        model_id = check_name("model_id", request.path_params["model_id"])
        await self._refresh_index()
        return self._index_response(request, await self._service.index.get_model_body(model_id))

    async def _refresh_index(self) -> None:
        """Import changes of other tools, and wait for missing hashes."""
        await asyncio.to_thread(self._service.refresh)
        await self._service.hasher.hash_pending(INDEX_HASH_TIMEOUT_SECONDS)

    def _index_response(self, request: Request, body: IndexBody) -> Response:
        data, etag = body.select_encoding(_accepts_gzip(request.headers.get("accept-encoding", "")))
        scope = "private" if self._service.is_private else "public"
        headers = {"etag": etag, "cache-control": f"{scope}, no-cache", "vary": "accept-encoding"}
        if_none_match = request.headers.get("if-none-match", "")
        if if_none_match and any(
            ranges.etag_matches(if_none_match, body.select_encoding(gzipped)[1]) for gzipped in (False, True)
        ):
            return Response(status_code=304, headers=headers)
        if data is body.gzipped:
            headers["content-encoding"] = "gzip"
        return Response(data, media_type="application/json", headers=headers)

    async def bundle(self, request: Request) -> Response:
        """Dispatch by method. A single route lists all methods in the `allow` header of a 405 response."""
        return await (self.put_bundle if request.method == "PUT" else self.get_bundle)(request)

    async def get_bundle(self, request: Request) -> Response:
        """Serve the requests that `RegistryConnection` does not handle.

        Examples are pipelined requests, invalid names, requests with a body, and stores without files.
        """
        await self._authorize_read(request)
        draft = _parse_draft(request)
        entry = await self._service.get_entry(draft.key)
        etag = f'"sha256:{entry.sha256}"'
        byte_range = ranges.select_range(
            entry.size_bytes,
            etag,
            range_=request.headers.get("range", "") if request.method == "GET" else "",
            if_range=request.headers.get("if-range", ""),
            if_none_match=request.headers.get("if-none-match", ""),
        )
        if request.method == "GET" and byte_range.status != 304:
            address = await asyncio.to_thread(self._service.store.presigned_url, entry)
            if address is not None:
                return RedirectResponse(address, 307, headers={"cache-control": "no-store", "etag": etag})
        return await self._range_response(request, entry, etag, byte_range)

    async def _range_response(
        self, request: Request, entry: BundleEntry, etag: str, byte_range: ranges.ByteRange
    ) -> Response:
        scope = "private" if self._service.is_private else "public"
        headers = {
            "etag": etag,
            "accept-ranges": "bytes",
            "cache-control": f"{scope}, max-age=31536000, immutable",
        }
        if byte_range.status == 206:
            headers["content-range"] = f"bytes {byte_range.start}-{byte_range.end - 1}/{entry.size_bytes}"
        elif byte_range.status == 416:
            headers["content-range"] = f"bytes */{entry.size_bytes}"
        if byte_range.status in (304, 416):
            return Response(status_code=byte_range.status, headers=headers)
        headers["content-length"] = str(byte_range.end - byte_range.start)
        if request.method == "HEAD":
            return Response(status_code=byte_range.status, headers=headers, media_type="application/octet-stream")
        chunks: Iterator[bytes] = self._service.store.read_range(entry, byte_range.start, byte_range.end)
        first = await asyncio.to_thread(next, chunks, b"")  # a failure after the status cannot be reported
        return StreamingResponse(
            itertools.chain((first,), chunks), byte_range.status, headers, media_type="application/octet-stream"
        )

    async def put_bundle(self, request: Request) -> Response:
        await self._service.authorize_write(request.headers.get("authorization", ""))
        draft = _parse_draft(request, parse_signature_headers(request.headers.getlist("x-svc-signature")))
        draft.validate_new()  # before the body, which may be large
        size = _parse_content_length(request.headers.get("content-length"))
        existing = await asyncio.to_thread(self._service.store.find, draft.key)
        if existing is not None and size is not None and size != existing.size_bytes:
            raise AlreadyExists(f"{draft.key} is already published with other bytes. Choose another version.")
        upload = await asyncio.to_thread(self._service.store.create_upload, size)
        try:
            await _receive_body(request, upload)
            entry, created = await asyncio.to_thread(self._service.store.publish, upload, draft)
        finally:
            await asyncio.to_thread(upload.close)
        self._service.counters.published += created
        return _json_response(entry_for_json(entry, served_path(entry)), 201 if created else 200)

    async def yank(self, request: Request) -> Response:
        return await self._set_yanked(request, True)

    async def unyank(self, request: Request) -> Response:
        return await self._set_yanked(request, False)

    async def _set_yanked(self, request: Request, yanked: bool) -> Response:
        await self._service.authorize_write(request.headers.get("authorization", ""))
        draft = _parse_draft(request)
        entry = await asyncio.to_thread(self._service.store.set_yanked, draft.key, yanked)
        return _json_response(entry_for_json(entry, served_path(entry) if is_served(entry) else ""))


async def _receive_body(request: Request, upload: BundleUpload) -> None:
    """Write the body to the upload, in batches and in threads."""
    batch = bytearray()
    stream = request.stream().__aiter__()
    while True:
        try:
            async with asyncio.timeout(UPLOAD_IDLE_TIMEOUT_SECONDS):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise InvalidRequest("The upload timed out.") from None
        if chunk is not None:
            batch += chunk
        if batch and (chunk is None or len(batch) >= UPLOAD_WRITE_BYTES):
            await asyncio.to_thread(upload.write, batch)
            batch = bytearray()
        if chunk is None:
            return


def _parse_draft(request: Request, signatures: tuple[Signature, ...] = ()) -> BundleDraft:
    path = request.path_params
    draft = BundleDraft(path["model_id"], path["version"], path["platform"], signatures)
    draft.validate()
    if path.get("file", f"{draft.model_id}.xyb") != f"{draft.model_id}.xyb":
        raise BundleNotFound(f"The file of this bundle is {draft.model_id}.xyb, not {path['file'][:80]}.")
    return draft


def _parse_content_length(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _accepts_gzip(accept: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip (RFC 9110, section 12.5.3)."""
    for item in accept.lower().split(","):
        name, _, weight = item.replace(" ", "").partition(";q=")
        if name in ("gzip", "*") and weight not in ("0", "0.0", "0.00", "0.000"):
            return True
    return False


def _json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _error_response(request: Request, error: Exception) -> Response:
    problem = error if isinstance(error, SvcError) else InternalError("Internal error.")
    request.scope[SCOPE_ERROR_CODE] = problem.code
    if problem.reason:
        log.warning("%s %s failed: %s (%s)", request.method, request.url.path, problem.message, problem.reason)
    return Response(encode_error_body(problem), problem.status, dict(problem.headers), "application/json")


async def _http_error_response(request: Request, error: Exception) -> Response:
    """Convert Starlette's errors for unknown paths and methods."""
    status = getattr(error, "status_code", 500)
    if status == 405:
        allowed_methods = (getattr(error, "headers", None) or {}).get("Allow", "")
        allow = ", ".join(sorted(allowed_methods.split(", ")))  # the order is that of a set
        return await _error_response(
            request, MethodNotAllowed(f"{request.url.path} does not support {request.method}.", allow=allow)
        )
    if status == 404:
        return await _error_response(request, NotFound(f"The path {request.url.path[:200]} does not exist."))
    return await _error_response(request, InvalidRequest("The request is not valid."))


async def _on_client_disconnect(_: Request, __: Exception) -> Response:
    """Return a response that nobody reads. Without it, the server logs the disconnect as an error."""
    log.info("a client disconnected during an upload")
    return Response(status_code=400)


async def _on_unhandled_error(request: Request, error: Exception) -> Response:
    log.error("an error while handling %s %s", request.method, request.url.path, exc_info=error)
    return await _error_response(request, InternalError("Internal error; see the log of the registry."))
