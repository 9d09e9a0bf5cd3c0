"""Request chat completions from a gateway, whole or streamed, with the standard library."""

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

CHAT_CONNECT_TIMEOUT_SECONDS = 10.0
CHAT_CHUNK_TIMEOUT_SECONDS = 300.0
MAX_CHAT_LINE_BYTES = 8 << 20
MAX_CHAT_RESPONSE_BYTES = 64 << 20

TRUNCATED_RESPONSE_MESSAGE = "the response was truncated: the connection closed before its end"
FINISH_REASON_MESSAGES = {
    "length": "the response reached the token limit (--max-tokens)",
    "content_filter": "the provider's content filter blocked the response",
    "tool_calls": "the model called a tool, and svc chat has no tools",
}
"""Finish reason -> message for the user."""


class GatewayAddress(msgspec.Struct, frozen=True):
    """The gateway to call. `url` ends in /v1."""

    url: str
    key: str | None

    def __repr__(self) -> str:
        return f"Gateway({self.url})"  # never the key


class CompletionChunk(msgspec.Struct, frozen=True):
    """A text delta, or the finish reason at the end."""

    text: str = ""
    finish_reason: str | None = None


def list_models(gateway: GatewayAddress) -> list[dict[str, Any]]:
    """Return the models of the gateway. Raises CommandFailed."""
    with _open_response(gateway, "GET", "/models", None) as response:
        data = _parse_json(response.read(MAX_CHAT_RESPONSE_BYTES)).get("data")
    return [model for model in data if isinstance(model, dict) and model.get("id")] if isinstance(data, list) else []


def request_chat(gateway: GatewayAddress, body: dict[str, Any]) -> Generator[CompletionChunk, None, None]:
    """Yield the chunks of a completion, the finish reason last. Closing the iterator closes the connection.

    Raises CommandFailed for an error response and for a truncated response.
    """
    with _open_response(gateway, "POST", "/chat/completions", json.dumps(body).encode()) as response:
        if not body.get("stream"):
            yield from _parse_response(_parse_json(response.read(MAX_CHAT_RESPONSE_BYTES)))
        else:
            yield from _parse_stream(response)


def _parse_response(response: dict[str, Any]) -> Iterator[CompletionChunk]:
    choice = _first_choice(response)
    message = choice.get("message") or {}
    yield CompletionChunk(str(message.get("content") or message.get("refusal") or ""))
    yield CompletionChunk(finish_reason=str(choice.get("finish_reason") or "stop"))


def _parse_stream(response: http.client.HTTPResponse) -> Iterator[CompletionChunk]:
    finish_reason = None
    while line := response.readline(MAX_CHAT_LINE_BYTES):
        name, _, value = line.partition(b":")
        if name != b"data":  # a comment or the end of an event: each event has one data line
            continue
        if value.strip() == b"[DONE]":
            break
        choice = _first_choice(_parse_json(value))
        finish_reason = choice.get("finish_reason") or finish_reason
        delta = choice.get("delta") or {}
        if text := delta.get("content") or delta.get("refusal"):
            yield CompletionChunk(str(text))
    if finish_reason is None:
        raise CommandFailed(TRUNCATED_RESPONSE_MESSAGE)
    yield CompletionChunk(finish_reason=str(finish_reason))


@contextmanager
def _open_response(
    gateway: GatewayAddress, method: str, path: str, body: bytes | None
) -> Iterator[http.client.HTTPResponse]:
    connection, base_path = _create_connection(gateway.url)
    headers = {"content-type": "application/json"} if body is not None else {}
    if gateway.key:
        headers["authorization"] = f"Bearer {gateway.key}"
    try:
        connection.connect()
    except (OSError, ValueError) as error:
        connection.close()
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CommandFailed(
            f"The gateway at {gateway.url} cannot be reached: {reason}. Start one with: svc up"
        ) from error
    try:
        assert connection.sock is not None  # set by connect()
        connection.sock.settimeout(CHAT_CHUNK_TIMEOUT_SECONDS)
        connection.request(method, base_path + path, body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise CommandFailed(_error_message(gateway, response.status, response.read(MAX_CHAT_LINE_BYTES)))
        yield response
    except http.client.IncompleteRead as error:
        raise CommandFailed(TRUNCATED_RESPONSE_MESSAGE) from error
    except http.client.HTTPException as error:
        raise CommandFailed(
            f"{gateway.url} does not respond like a gateway ({type(error).__name__}: {error})."
        ) from error
    except TimeoutError as error:
        raise CommandFailed(f"{gateway.url} sent nothing for {CHAT_CHUNK_TIMEOUT_SECONDS:.0f} s.") from error
    except OSError as error:
        raise CommandFailed(TRUNCATED_RESPONSE_MESSAGE) from error
    finally:
        connection.close()


def _create_connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    try:
        address = urlsplit(url)
        host, port = address.hostname, address.port
    except ValueError:
        host, port = None, None
    if not host or address.scheme not in ("http", "https") or not url.isascii() or not url.isprintable():
        raise UsageError(f"{url!r} is not the address of a gateway, such as http://127.0.0.1:3000/v1")
    if address.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=CHAT_CONNECT_TIMEOUT_SECONDS), address.path.rstrip("/")
    tls = ssl.create_default_context()
    return http.client.HTTPSConnection(
        host, port, timeout=CHAT_CONNECT_TIMEOUT_SECONDS, context=tls
    ), address.path.rstrip("/")


def _error_message(gateway: GatewayAddress, status: int, body: bytes) -> str:
    try:
        message = str(json.loads(body)["error"]["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        return (
            f"{gateway.url} returned status {status}. Check that this is the address of a gateway, which ends in /v1."
        )
    if status == 401 and gateway.key is None:
        return f"The gateway at {gateway.url} needs an API key. Set one with --key or SVC_API_KEY."
    if status == 401:  # the rest of the message is for clients that send the header themselves
        return f"{message.partition('. ')[0].rstrip('.')}. Set a valid one with --key or SVC_API_KEY."
    return message


def _first_choice(response: dict[str, Any]) -> dict[str, Any]:
    """Return the first choice. Raises CommandFailed for an error object in its place."""
    error = response.get("error")
    if error is not None:
        message = error.get("message") if isinstance(error, dict) else error
        raise CommandFailed(f"the response was truncated: {message}"[:1000])
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    return first if isinstance(first, dict) else {}


def _parse_json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CommandFailed(
            "The response is not JSON. Check that this is the address of a gateway, which ends in /v1."
        ) from error
    return value if isinstance(value, dict) else {}
