"""Uploads that the temporary folder of the machine cannot store."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.types import Message

from svc.errors import InsufficientStorage
from svc.speech.upload_endpoint import read_form

BOUNDARY = b"----boundary"
MEMORY_BYTES = 1024 * 1024
"""What Starlette keeps of a file in memory before it writes to the temporary folder."""


def _upload(size: int) -> Request:
    head = b'\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    body = b"--" + BOUNDARY + head + bytes(size) + b"\r\n--" + BOUNDARY + b"--\r\n"

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", b"multipart/form-data; boundary=" + BOUNDARY)]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


async def _read(request: Request) -> None:
    async with AsyncExitStack() as resources:
        await read_form(request, resources)


@pytest.mark.parametrize("size", [100, 2 * MEMORY_BYTES])
def test_read_form_missing_temporary_folder_raises_insufficient_storage(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(InsufficientStorage):
        asyncio.run(_read(_upload(size)))
    assert "temporary folder: No such file or directory" in caplog.text
