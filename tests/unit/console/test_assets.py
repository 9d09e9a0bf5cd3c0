"""The files of the console: while they are built, after a new build, hostile paths."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette

from svc.console.assets import ConsoleAssets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "static"


@pytest.fixture
def client(folder: Path) -> httpx2.AsyncClient:
    app = Starlette(routes=ConsoleAssets(folder).routes())
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://x")


def write_build(folder: Path, text: str) -> None:
    (folder / "assets").mkdir(parents=True, exist_ok=True)
    (folder / "assets" / "a.js").write_text(text)
    (folder / ".hidden").write_text("secret")
    (folder / "index.html").write_text(f"<p>{text}")


async def test_page_before_the_build_says_so_and_then_appears(client: httpx2.AsyncClient, folder: Path) -> None:
    before = await client.get("/console/keys")
    assert before.status_code == 503
    assert "being built" in before.text
    write_build(folder, "one")
    assert (await client.get("/console/keys")).text == "<p>one"


async def test_new_build_replaces_the_old_one(client: httpx2.AsyncClient, folder: Path) -> None:
    write_build(folder, "one")
    first = await client.get("/console/overview")
    write_build(folder, "two")
    second = await client.get("/console/overview", headers={"if-none-match": first.headers["etag"]})
    assert (second.status_code, second.text) == (200, "<p>two")


async def test_large_file_is_compressed_if_the_client_accepts_it(client: httpx2.AsyncClient, folder: Path) -> None:
    write_build(folder, "x" * 10_000)
    plain = await client.get("/console/assets/a.js", headers={"accept-encoding": "identity"})
    assert plain.content == b"x" * 10_000
    assert "content-encoding" not in plain.headers
    async with client.stream("GET", "/console/assets/a.js", headers={"accept-encoding": "gzip"}) as response:
        raw = b"".join([chunk async for chunk in response.aiter_raw()])
    assert len(raw) < 200
    assert gzip.decompress(raw) == plain.content


@pytest.mark.parametrize("path", ["/console/", "/console/index.html"])
async def test_root_leads_to_the_overview(client: httpx2.AsyncClient, path: str) -> None:
    assert (await client.get(path)).headers["location"] == "/console/overview"


@pytest.mark.parametrize(
    "path", ["/console/.hidden", "/console/assets", "/console/assets/../../x", "/console/%2e%2e/etc/passwd"]
)
async def test_other_paths_are_not_found(client: httpx2.AsyncClient, folder: Path, path: str) -> None:
    write_build(folder, "one")
    assert (await client.get(path)).status_code in (404, 500)  # without the gateway's handler of errors


async def test_unknown_page_is_the_console_with_status_404(client: httpx2.AsyncClient, folder: Path) -> None:
    write_build(folder, "one")
    response = await client.get("/console/nonsense")
    assert (response.status_code, response.text) == (404, "<p>one")


async def test_page_with_a_slash_at_its_end_leads_to_the_page(client: httpx2.AsyncClient) -> None:
    response = await client.get("/console/requests/?status=error&tag=a%3Ab")
    assert (response.status_code, response.headers["location"]) == (308, "/console/requests?status=error&tag=a%3Ab")


async def test_browsers_find_an_icon(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/favicon.ico")).headers["location"] == "/console/icon.svg"
