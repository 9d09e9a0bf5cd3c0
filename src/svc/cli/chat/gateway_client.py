"""Request chat completions from a gateway with the SDK, whole or streamed. Requests are not repeated."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from svc import plugins
from svc.cli import _gateway_address
from svc.client.chat import ChatChunk, ChatResponseStream, build_request, decode_result, gateway_backend
from svc.client.core import ModelInfo, decode_models
from svc.client.http_session import HttpSession, SessionTimeouts
from svc.client.transport import run_sync
from svc.errors import AuthenticationFailed, CommandFailed, GatewayFailed, NotFound, SvcError

CHAT_CHUNK_TIMEOUT_SECONDS = 300.0

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


class ChatOptions(msgspec.Struct, frozen=True):
    """The options of all requests of a conversation."""

    model: str
    stream: bool = True
    max_tokens: int | None = None


def list_models(gateway: GatewayAddress) -> list[ModelInfo]:
    """Return the models of the gateway. Raises SvcError."""
    with _open_session(gateway) as session:
        return decode_models(run_sync(session.fetch("GET", "/models"))[1])


def request_chat(
    gateway: GatewayAddress, options: ChatOptions, messages: Sequence[dict[str, Any]]
) -> Generator[ChatChunk, None, None]:
    """Yield the chunks of a completion, the finish reason last. Closing the iterator closes the connection.

    Raises CommandFailed for a truncated response, and SvcError for an error response.
    """
    backend = gateway_backend(options.model)
    request = build_request(backend, messages, {"max_tokens": options.max_tokens}, stream=options.stream)
    arguments = ("POST", request.path, request.body, request.headers)
    with _open_session(gateway) as session:
        if not options.stream:
            result = decode_result(backend, *run_sync(session.fetch(*arguments)))
            yield ChatChunk(result.text)
            yield ChatChunk(finish_reason=result.finish_reason)
            return
        stream = ChatResponseStream(session, run_sync(session.open(*arguments)), backend)
        try:
            while (chunk := run_sync(stream.next())) is not None:
                if chunk.text or chunk.finish_reason:
                    yield chunk
        except SvcError as error:
            raise CommandFailed(f"the response was truncated: {error.message}") from error
        finally:
            run_sync(stream.close())


@contextmanager
def _open_session(gateway: GatewayAddress) -> Iterator[HttpSession]:
    transport = plugins.load("client", "blocking_transport").BlockingTransport(
        gateway.url, direct=_gateway_address.is_local_gateway(gateway.url)
    )
    headers = {"authorization": f"Bearer {gateway.key}"} if gateway.key else {}
    timeouts = SessionTimeouts(idle=CHAT_CHUNK_TIMEOUT_SECONDS)
    session = HttpSession(transport, gateway.url, headers, retries=0, timeouts=timeouts)
    try:
        yield session
    except AuthenticationFailed as error:
        if gateway.key is None:
            raise CommandFailed(
                f"The gateway at {gateway.url} needs an API key. Set one with --key or SVC_API_KEY."
            ) from error
        # The rest of the message is for clients that send the header themselves.
        reason = error.message.partition(". ")[0].rstrip(".")
        raise CommandFailed(f"{reason}. Set a valid one with --key or SVC_API_KEY.") from error
    except NotFound as error:
        raise CommandFailed(f"{error.message} Check that {gateway.url} is a gateway, which ends in /v1.") from error
    except GatewayFailed as error:
        raise CommandFailed(f"{error.message} Start one with: svc up") from error
    finally:
        run_sync(session.close())
