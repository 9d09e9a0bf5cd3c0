"""`document` blocks <-> documents of the hub form (docs.anthropic.com, "PDF support", "Files API")."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from svc.dialects.reading import convert_request
from svc.errors import InvalidRequest
from svc.wire.chat import Document

PDF: Final = "application/pdf"
FILES_BETA: Final = b"anthropic-beta: files-api-2025-04-14"
"""Anthropic refuses a block that names a file without this request header."""


class _Source(msgspec.Struct):
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None


def read_document(source: Any, title: str | None, cache: dict[str, Any] | None, path: str) -> Document:
    """Read a block's `source`, unless it is a list of blocks; raises InvalidRequest."""
    given: _Source = convert_request(source, _Source, f"{path}.source")
    made = Document(title=title, cache=cache)
    match given.type:
        case "base64" if given.data is not None and given.media_type:
            made.media_type, made.data = given.media_type.lower(), given.data
        case "text" if given.data is not None:
            made.text = given.data
        case "url" if given.url:
            made.url = given.url
        case "file" if given.file_id:
            made.file_id = given.file_id
        case _:
            words = "A document has to be base64 data, text, a link, or a file's id."
            raise InvalidRequest(words, param=f"{path}.source")
    return made


def write_document(document: Document, path: str) -> dict[str, Any]:
    """Write a `document` block; raises InvalidRequest for a type of file that Anthropic does not take."""
    made: dict[str, Any] = {"type": "document", "source": _source(document, path)}
    if document.title:
        made["title"] = document.title
    return {**made, "cache_control": document.cache} if document.cache else made


def _source(document: Document, path: str) -> dict[str, Any]:
    if document.file_id is not None:
        return {"type": "file", "file_id": document.file_id}
    if document.url is not None:
        return {"type": "url", "url": document.url}
    if document.text is not None:
        return _text(document.text)
    media, data = document.media_type or "", document.data or ""
    if media == PDF:
        return {"type": "base64", "media_type": PDF, "data": data}
    if media.startswith("text/"):
        try:
            return _text(base64.b64decode(data, validate=True).decode())
        except ValueError:
            raise InvalidRequest("A text file has to be UTF-8 in base64.", param=f"{path}.content") from None
    words = f"The provider of this model takes files of the types {PDF} and text."
    raise InvalidRequest(words, param=f"{path}.content")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "media_type": "text/plain", "data": text}
