"""Serves the built pages of the console from memory, with ETags and gzip."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import mimetypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from svc.errors import NotFound

CONSOLE_PATH: Final = "/console/"
STATIC_DIR: Final = Path(__file__).parent / "static"
"""The output of the build: see `console/vite.config.ts`."""
PAGES: Final = (
    *("overview", "playground", "speech", "requests", "usage"),
    *("keys", "providers", "bundles", "pipelines", "connect"),
)
SECURITY_HEADERS: Final = {
    # uPlot and Preact set styles through the CSSOM, which the policy allows.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; media-src 'self' blob:; worker-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
}
_BUILDING_PAGE: Final = (
    b"<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=3><title>Console</title>"
    b"<h1>The console is being built</h1><p>This page loads again every 3 seconds. If it takes longer than a minute, "
    b"run <code>make console</code>, which says what is missing."
)
_PAGE_NAME: Final = re.compile("[A-Za-z][A-Za-z-]*")
_MIN_COMPRESSED_BYTES: Final = 512


@dataclass(frozen=True)
class Asset:
    """A file of the console, plain and compressed."""

    body: bytes
    compressed_body: bytes | None
    """None if compression saves nothing."""
    media_type: str
    etag: str
    is_immutable: bool
    """Whether the file's name changes with its content."""


class ConsoleAssets:
    """The files of the console. They are read when the first page is requested, and again after a new build."""

    def __init__(self, folder: Path = STATIC_DIR) -> None:
        self._folder = folder
        self._assets: dict[str, Asset] = {}
        self._built_at = 0
        self._lock = asyncio.Lock()

    def routes(self) -> list[BaseRoute]:
        """Return the routes. They need no key: the files contain no data."""
        return [
            Route("/console", self._redirect, methods=["GET"]),
            # Browsers ask for it when they show a response of the API.
            Route("/favicon.ico", self._serve_icon, methods=["GET"]),
            Route(f"{CONSOLE_PATH}{{path:path}}", self._serve, methods=["GET"]),
        ]

    async def _redirect(self, request: Request) -> Response:
        return RedirectResponse(CONSOLE_PATH, 308)

    async def _serve_icon(self, request: Request) -> Response:
        return RedirectResponse(f"{CONSOLE_PATH}icon.svg", 308)

    async def _serve(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path in ("", "index.html"):
            return RedirectResponse(f"{CONSOLE_PATH}{PAGES[0]}", 307)
        if path.endswith("/") and _PAGE_NAME.fullmatch(path[:-1]) is not None:
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"{CONSOLE_PATH}{path[:-1]}{query}", 308)
        await self._load()
        is_page = path in PAGES
        is_unknown_page = not is_page and _PAGE_NAME.fullmatch(path) is not None
        # The script of the page says that there is no such page.
        asset = self._assets.get("index.html" if is_page or is_unknown_page else path)
        if asset is None and is_page:
            headers = {**SECURITY_HEADERS, "cache-control": "no-store", "retry-after": "3"}
            return Response(_BUILDING_PAGE, 503, headers, "text/html")
        if asset is None:
            raise NotFound("The console has no such file.")
        return _asset_response(request, asset, 404 if is_unknown_page else 200)

    async def _load(self) -> None:
        """Read the files if they were built since the last request."""
        async with self._lock:
            built_at = _modified_at(self._folder / "index.html")
            if built_at and built_at != self._built_at:
                try:
                    self._assets = await asyncio.to_thread(_read_assets, self._folder)
                except FileNotFoundError:  # a build is replacing the folder: the next request reads it
                    return
                self._built_at = built_at


def _asset_response(request: Request, asset: Asset, status: int = 200) -> Response:
    headers = {
        **SECURITY_HEADERS,
        "etag": asset.etag,
        "vary": "accept-encoding",
        "cache-control": "public, max-age=31536000, immutable" if asset.is_immutable else "no-cache",
    }
    if asset.etag in (value.strip() for value in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    body = asset.body
    if asset.compressed_body is not None and "gzip" in request.headers.get("accept-encoding", ""):
        body = asset.compressed_body
        headers["content-encoding"] = "gzip"
    return Response(body, status, headers, asset.media_type)


def _modified_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _read_assets(folder: Path) -> dict[str, Asset]:
    return {
        path.relative_to(folder).as_posix(): _read_asset(path)
        for path in sorted(folder.rglob("[!.]*"))
        if path.is_file()
    }


def _read_asset(path: Path) -> Asset:
    body = path.read_bytes()
    compressed_body = gzip.compress(body, 9, mtime=0) if len(body) >= _MIN_COMPRESSED_BYTES else None
    if compressed_body is not None and len(compressed_body) >= len(body):
        compressed_body = None
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Asset(
        body=body,
        compressed_body=compressed_body,
        media_type=media_type,
        etag=f'W/"{hashlib.sha256(body).hexdigest()[:24]}"',
        is_immutable=path.parent.name == "assets",
    )
