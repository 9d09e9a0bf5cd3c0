"""The common base of both clients. `core` implements their behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svc.client.core import ClientCore
from svc.client.http_session import SessionTimeouts
from svc.client.transport import ClientTransport

if TYPE_CHECKING:
    from svc.client.chat import ChatChunk, ChatResponseStream
    from svc.client.core import DirectProvider

DEFAULT_CLIENT_RETRIES = 2


class BaseClient:
    """The common base of both clients. Arguments take precedence over `svc.init`, and that over the environment.

    `timeout` is the longest wait for a byte from the gateway, in seconds. Raises InvalidRequest for an invalid address
    or key.
    """

    _transport_type: type[ClientTransport]

    def __init__(
        self,
        *,
        gateway_url: str | None = None,
        api_key: str | None = None,
        registry: str | None = None,
        retries: int = DEFAULT_CLIENT_RETRIES,
        timeout: float = 120.0,
        direct: DirectProvider | None = None,
    ) -> None:
        self._core = ClientCore(
            self._transport_type(),
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
    chat_stream.usage = response_stream.usage
    if chunk is None:
        raise stop_type
    chat_stream.text += chunk.text
    return chunk
