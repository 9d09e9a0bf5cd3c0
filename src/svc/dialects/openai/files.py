"""`file` parts <-> documents of the hub form (platform.openai.com/docs/guides/pdf-files)."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from svc.errors import InvalidRequest
from svc.wire.chat import Document

DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+=-]+)*;base64,(.*)", re.DOTALL | re.IGNORECASE)
PDF: Final = "application/pdf"
_BARE_PDF: Final = "JVBERi"
"""How base64 of a PDF begins: some clients leave out `data:application/pdf;base64,`."""


class FileShape(msgspec.Struct):
    """`file` of a part."""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


def read_file(file: FileShape, cache: dict[str, Any] | None, path: str) -> Document:
    """Raises InvalidRequest for a file without data and id, or with data of another form."""
    if file.file_data is None:
        if not file.file_id:
            words = "A file has to have `file_data` or `file_id`."
            raise InvalidRequest(words, param=f"{path}.file")
        return Document(file_id=file.file_id, title=file.filename, cache=cache)
    if file.file_data.startswith(_BARE_PDF):
        return Document(media_type=PDF, data=file.file_data, title=file.filename, cache=cache)
    found = DATA_URL.fullmatch(file.file_data)
    if found is None:
        raise InvalidRequest("A file has to be a data URL in base64.", param=f"{path}.file.file_data")
    return Document(media_type=found.group(1).lower(), data=found.group(2), title=file.filename, cache=cache)


def write_file(document: Document) -> dict[str, Any]:
    """Write a part; raises InvalidRequest for a link, which chat completions does not take."""
    if document.text is not None:
        return {"type": "text", "text": document.text}
    if document.file_id is not None:
        return {"type": "file", "file": {"file_id": document.file_id}}
    if document.data is None:
        words = "The provider of this model takes documents as base64 data, not as links."
        raise InvalidRequest(words, param="messages")
    name = document.title or "document"
    if document.media_type == PDF and not name.lower().endswith(".pdf"):
        name += ".pdf"  # OpenAI refuses a PDF without it
    data = f"data:{document.media_type};base64,{document.data}"
    return {"type": "file", "file": {"filename": name, "file_data": data}}
