"""One question to a gateway, and the pieces of its answer as they come. By the standard library; prints nothing."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec

from svc.errors import CommandFailed, UsageError

CONNECT_TIMEOUT = 10.0
PIECE_TIMEOUT = 300.0
MAX_LINE = 8 << 20
MAX_BODY = 64 << 20

CUT = "the answer was cut off: the connection ended before the answer did"
ENDINGS = {
    "length": "the answer stops here because it reached the limit of tokens (--max-tokens)",
    "content_filter": "the answer was held back by the provider's filter",
    "tool_calls": "the model asks for a tool, and there are none here",
}
"""Finish reason -> what a person should know about it."""


class Gateway(msgspec.Struct, frozen=True):
    """Where to ask. `url` ends in /v1."""

    url: str
    key: str | None

    def __repr__(self) -> str:
        return f"Gateway({self.url})"  # never the key


class Piece(msgspec.Struct, frozen=True):
    """Some text, or at the end the reason why the answer ended."""

    text: str = ""
    finish: str | None = None


def models(gateway: Gateway) -> list[dict[str, Any]]:
    """What the gateway offers. Raises CommandFailed."""
    with _asking(gateway, "GET", "/models", None) as response:
        found = _json(response.read(MAX_BODY)).get("data")
    return [each for each in found if isinstance(each, dict) and each.get("id")] if isinstance(found, list) else []


def ask(gateway: Gateway, body: dict[str, Any]) -> Generator[Piece, None, None]:
    """The answer in pieces, the last of which says how it ended. Closing the iterator closes the connection.

    Raises CommandFailed when there is no answer, or only a part of one.
    """
    with _asking(gateway, "POST", "/chat/completions", json.dumps(body).encode()) as response:
        if not body.get("stream"):
            yield from _whole(_json(response.read(MAX_BODY)))
        else:
            yield from _stream(response)


def _whole(answer: dict[str, Any]) -> Iterator[Piece]:
    choice = _choice(answer)
    message = choice.get("message") or {}
    yield Piece(str(message.get("content") or message.get("refusal") or ""))
    yield Piece(finish=str(choice.get("finish_reason") or "stop"))


def _stream(response: http.client.HTTPResponse) -> Iterator[Piece]:
    finish = None
    while line := response.readline(MAX_LINE):
        name, _, value = line.partition(b":")
        if name != b"data":  # a comment, or the end of an event: ours have one data line each
            continue
        if value.strip() == b"[DONE]":
            break
        choice = _choice(_json(value))
        finish = choice.get("finish_reason") or finish
        delta = choice.get("delta") or {}
        if text := delta.get("content") or delta.get("refusal"):
            yield Piece(str(text))
    if finish is None:
        raise CommandFailed(CUT)
    yield Piece(finish=str(finish))


@contextmanager
def _asking(gateway: Gateway, method: str, path: str, body: bytes | None) -> Iterator[http.client.HTTPResponse]:
    connection, base = _connect(gateway.url)
    headers = {"content-type": "application/json"} if body is not None else {}
    if gateway.key:
        headers["authorization"] = f"Bearer {gateway.key}"
    try:
        connection.connect()
    except (OSError, ValueError) as error:
        connection.close()
        raise CommandFailed(f"No gateway answers at {gateway.url} ({error}). Start one with: svc up") from error
    try:
        assert connection.sock is not None  # it is connected
        connection.sock.settimeout(PIECE_TIMEOUT)
        connection.request(method, base + path, body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise CommandFailed(_reason(gateway, response.status, response.read(MAX_LINE)))
        yield response
    except http.client.IncompleteRead as error:
        raise CommandFailed(CUT) from error
    except http.client.HTTPException as error:
        raise CommandFailed(
            f"{gateway.url} does not answer like a gateway ({type(error).__name__}: {error})."
        ) from error
    except TimeoutError as error:
        raise CommandFailed(f"{gateway.url} said nothing for {PIECE_TIMEOUT:.0f} s.") from error
    except OSError as error:
        raise CommandFailed(CUT) from error
    finally:
        connection.close()


def _connect(url: str) -> tuple[http.client.HTTPConnection, str]:
    try:
        address = urlsplit(url)
        host, port = address.hostname, address.port
    except ValueError:
        host, port = None, None
    if not host or address.scheme not in ("http", "https") or not url.isascii() or not url.isprintable():
        raise UsageError(f"{url!r} is not the address of a gateway; it looks like http://127.0.0.1:3000/v1")
    if address.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT), address.path.rstrip("/")
    tls = ssl.create_default_context()
    return http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT, context=tls), address.path.rstrip("/")


def _reason(gateway: Gateway, status: int, body: bytes) -> str:
    try:
        message = str(json.loads(body)["error"]["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        return f"{gateway.url} answered with status {status}. Is it a gateway? Its address ends in /v1."
    if status == 401:
        return f"{message} Give one with --key or SVC_API_KEY."
    return message


def _choice(answer: dict[str, Any]) -> dict[str, Any]:
    """The first choice; raises CommandFailed for an error in its place."""
    error = answer.get("error")
    if error is not None:
        message = error.get("message") if isinstance(error, dict) else error
        raise CommandFailed(f"the answer was cut off: {message}"[:1000])
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    return first if isinstance(first, dict) else {}


def _json(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise CommandFailed("The answer is not JSON. Is it a gateway? Its address ends in /v1.") from error
    return found if isinstance(found, dict) else {}
