"""The common base of both clients. `core` implements their behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svc.client.core import ClientCore, TransportFactory
from svc.client.http_session import SessionTimeouts
from svc.errors import InvalidRequest

if TYPE_CHECKING:
    from svc.client.chat import ChatChunk, ChatResponseStream
    from svc.client.core import DirectProvider
    from svc.client.responses import ResponseEventStream, ResponseStreamEvent

DEFAULT_CLIENT_RETRIES = 2
DEFAULT_CLIENT_TIMEOUT_SECONDS = 120.0


class BaseClient:
    """The common base of both clients."""

    def __init__(
        self,
        create_transport: TransportFactory,
        *,
        gateway_url: str | None,
        api_key: str | None,
        registry: str | None,
        retries: int,
        timeout: float,
        direct: DirectProvider | None,
    ) -> None:
        if not isinstance(retries, int) or retries < 0:
            raise InvalidRequest("retries must be a whole number, 0 or more.", param="retries")
        if not isinstance(timeout, int | float) or not timeout > 0:  # NaN as well
            raise InvalidRequest("timeout must be a number of seconds above 0.", param="timeout")
        self._core = ClientCore(
            create_transport,
            gateway_url=gateway_url,
            api_key=api_key,
            registry=registry,
            retries=retries,
            timeouts=SessionTimeouts(idle=timeout),
            direct=direct,
        )

    @property
    def gateway_url(self) -> str:
        """The base URL of the gateway, with `/v1`."""
        return self._core.session.base_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.gateway_url!r})"  # never the key


def record_chunk(
    chat_stream: Any, response_stream: ChatResponseStream, chunk: ChatChunk | None, stop_type: type[Exception]
) -> ChatChunk:
    """Add the next chunk to the totals of the stream and return it. Raises `stop_type` at the end."""
    chat_stream.usage, chat_stream.tool_calls = response_stream.usage, response_stream.tool_calls
    chat_stream.model = response_stream.model
    if chunk is None:
        raise stop_type
    chat_stream.text += chunk.text
    chat_stream.reasoning += chunk.reasoning
    chat_stream.finish_reason = chunk.finish_reason or chat_stream.finish_reason
    return chunk


def record_event(
    response_stream: Any,
    event_stream: ResponseEventStream,
    event: ResponseStreamEvent | None,
    stop_type: type[Exception],
) -> ResponseStreamEvent:
    """Add the next event to the totals of the stream and return it. Raises `stop_type` at the end."""
    if event is None:
        raise stop_type
    response_stream.text += event.text
    response_stream.result = event_stream.result
    return event
