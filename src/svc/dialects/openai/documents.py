"""`file` parts <-> documents of the canonical chat (platform.openai.com/docs/guides/pdf-files)."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from svc.dialects.request_values import check_base64
from svc.errors import InvalidRequest
from svc.wire.chat import DocumentPart

DATA_URL_PATTERN: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+=-]+)*;base64,(.*)", re.DOTALL | re.IGNORECASE)
PDF_MEDIA_TYPE: Final = "application/pdf"
_BASE64_PDF_PREFIX: Final = "JVBERi"
"""The first characters of a PDF in base64. Some clients omit `data:application/pdf;base64,`."""


class FilePayload(msgspec.Struct):
    """`file` of a content part."""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


def decode_file(file: FilePayload, cache: dict[str, Any] | None, path: str) -> DocumentPart:
    """Decode the file at `path`. Raises InvalidRequest if it has neither data nor id, or data in another format."""
    if file.file_data is None:
        if not file.file_id:
            message = f"`{path}` must have `file_data` or `file_id`."
            raise InvalidRequest(message, param=path)
        return DocumentPart(file_id=file.file_id, title=file.filename, cache=cache)
    data_path = f"{path}.file_data"
    if file.file_data.startswith(_BASE64_PDF_PREFIX):
        data = check_base64(file.file_data, data_path)
        return DocumentPart(media_type=PDF_MEDIA_TYPE, data=data, title=file.filename, cache=cache, path=data_path)
    match = DATA_URL_PATTERN.fullmatch(file.file_data)
    if match is None:
        raise InvalidRequest(f"`{data_path}` must be a data URL in base64.", param=data_path)
    data = check_base64(match.group(2), data_path)
    media_type = match.group(1).lower()
    return DocumentPart(media_type=media_type, data=data, title=file.filename, cache=cache, path=data_path)


def encode_file(document: DocumentPart) -> dict[str, Any]:
    """Encode a `file` part. Raises InvalidRequest for a URL, which the chat completions API does not support."""
    if document.text is not None:
        return {"type": "text", "text": document.text}
    if document.file_id is not None:
        return {"type": "file", "file": {"file_id": document.file_id}}
    if document.data is None:
        message = "The provider of this model supports documents as base64 data, not as links."
        raise InvalidRequest(message, param=document.path)
    name = document.title or "document"
    if document.media_type == PDF_MEDIA_TYPE and not name.lower().endswith(".pdf"):
        name += ".pdf"  # OpenAI rejects a PDF without the extension
    data = f"data:{document.media_type};base64,{document.data}"
    return {"type": "file", "file": {"filename": name, "file_data": data}}
