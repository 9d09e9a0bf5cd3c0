"""`document` blocks <-> documents of the canonical chat (docs.anthropic.com, "PDF support", "Files API")."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from svc.dialects.request_values import MediaType, check_base64, check_link
from svc.dialects.validation import convert_client_value
from svc.errors import InvalidRequest
from svc.wire.chat import DocumentPart

PDF_MEDIA_TYPE: Final = "application/pdf"
FILES_BETA_HEADER_LINE: Final = b"anthropic-beta: files-api-2025-04-14"
"""Without this request header, Anthropic rejects a block that references a file."""


class _DocumentSource(msgspec.Struct):
    type: str
    media_type: MediaType | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None


def decode_document(source: Any, title: str | None, cache: dict[str, Any] | None, path: str) -> DocumentPart:
    """Decode a block's `source`, unless it is a list of blocks. Raises InvalidRequest."""
    decoded: _DocumentSource = convert_client_value(source, _DocumentSource, f"{path}.source")
    document = DocumentPart(title=title, cache=cache)
    match decoded.type:
        case "base64" if decoded.data is not None and decoded.media_type:
            document.media_type = decoded.media_type.lower()
            document.data = check_base64(decoded.data, f"{path}.source.data")
        case "text" if decoded.data is not None:
            document.text = decoded.data
        case "url" if decoded.url:
            document.path = f"{path}.source.url"
            document.url = check_link(decoded.url, document.path)
        case "file" if decoded.file_id:
            document.file_id = decoded.file_id
        case _:
            message = f"`{path}.source` must be base64 data, text, a link, or a file's id."
            raise InvalidRequest(message, param=f"{path}.source")
    return document


def encode_document(document: DocumentPart, path: str) -> dict[str, Any]:
    """Encode a `document` block. Raises InvalidRequest for a media type that Anthropic does not support."""
    block: dict[str, Any] = {"type": "document", "source": _encode_source(document, document.path or f"{path}.content")}
    if document.title:
        block["title"] = document.title
    return {**block, "cache_control": document.cache} if document.cache else block


def _encode_source(document: DocumentPart, path: str) -> dict[str, Any]:
    if document.file_id is not None:
        return {"type": "file", "file_id": document.file_id}
    if document.url is not None:
        return {"type": "url", "url": document.url}
    if document.text is not None:
        return _text_source(document.text)
    media_type, data = document.media_type or "", document.data or ""
    if media_type == PDF_MEDIA_TYPE:
        return {"type": "base64", "media_type": PDF_MEDIA_TYPE, "data": data}
    if media_type.startswith("text/"):
        try:
            return _text_source(base64.b64decode(data, validate=True).decode())
        except ValueError:
            raise InvalidRequest("A text file must be UTF-8 in base64.", param=path) from None
    message = f"The provider of this model supports only files of the types {PDF_MEDIA_TYPE} and text."
    raise InvalidRequest(message, param=path)


def _text_source(text: str) -> dict[str, Any]:
    return {"type": "text", "media_type": "text/plain", "data": text}
