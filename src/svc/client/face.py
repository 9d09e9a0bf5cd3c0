"""What both faces of the SDK are made of; what they do is in `core`, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svc.client.core import Core
from svc.client.session import Times
from svc.client.wires import Net

if TYPE_CHECKING:
    from svc.client.chat import Piece, Stream
    from svc.client.core import Direct

RETRIES = 2


class Face:
    """What both are made of. Values given here come before `svc.init`, and that before the environment.

    `timeout`: seconds without a byte from the gateway. Raises InvalidRequest for an address or a key that is none.
    """

    _net: type[Net]

    def __init__(
        self,
        *,
        gateway_url: str | None = None,
        api_key: str | None = None,
        registry: str | None = None,
        retries: int = RETRIES,
        timeout: float = 120.0,
        direct: Direct | None = None,
    ) -> None:
        self._core = Core(
            self._net(),
            gateway_url=gateway_url,
            api_key=api_key,
            registry=registry,
            retries=retries,
            times=Times(idle=timeout),
            direct=direct,
        )

    @property
    def gateway_url(self) -> str:
        """The address that is called, with `/v1`."""
        return self._core.session.base

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.gateway_url!r})"  # never the key


def noted(face: Any, stream: Stream, piece: Piece | None, over: type[Exception]) -> Piece:
    """The next piece of a stream, counted in its face; raises `over` at the end."""
    face.usage = stream.usage
    if piece is None:
        raise over
    face.text += piece.text
    return piece
