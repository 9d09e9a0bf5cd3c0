"""The messages of live speech, from `svc/wire/speech.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from svc.wire import speech
from tests.documentation.reference.markdown import docstring, struct_rows, table

CLIENT_EXAMPLES = (
    '{"type":"config","model":"moonshine-tiny-en","language":"en"}',
    '{"type":"flush"}',
    '{"type":"reset"}',
    '{"type":"close"}',
)
SERVER_EXAMPLES: tuple[speech.ServerMessage, ...] = (
    speech.ReadyEvent("sess_e0b43c8dec5160a74046a5b7", "moonshine-tiny-en"),
    speech.Partial("Hello.", is_stable=False, chunk_index=0),
    speech.Final("Hello world", 1143, 3, (speech.WordTime("Hello", 320, 560), speech.WordTime("world", 640, 940))),
    speech.ErrorEvent("'vad' must be a boolean.", "invalid_request"),
    speech.ClosedEvent("client_close"),
)


def client_messages() -> str:
    """A section for each message of a client."""
    examples = {type(speech.decode_client_message(text)): text for text in CLIENT_EXAMPLES}
    sections = []
    for message in get_args(speech.ClientMessage):
        name = message.__name__.removesuffix("Message").lower()
        rows = [(field, kind, meaning) for field, kind, _, meaning in struct_rows(message)]
        sections.append(_section(name, docstring(message), rows, examples[message]))
    return "\n".join(sections)


def server_messages() -> str:
    """A section for each message of the gateway."""
    examples = {type(message): speech.encode_server_message(message) for message in SERVER_EXAMPLES}
    sections = []
    for message in get_args(speech.ServerMessage):
        rows = [(field, kind, meaning) for field, kind, _, meaning in struct_rows(message)]
        sections.append(_section(message.__struct_config__.tag, docstring(message), rows, examples[message]))
    return "\n".join(sections)


def _section(name: str, text: str, rows: list[tuple[str, str, str]], example: str) -> str:
    fields = table(("Field", "Type", "Meaning"), rows) if rows else "The message has no fields.\n"
    return f"### `{name}`\n\n{text}\n\n{fields}\n```json\n{example}\n```\n"


REGIONS: dict[str, Callable[[], str]] = {"speech.client": client_messages, "speech.server": server_messages}
