"""The dialect of Anthropic's messages.

head       what routing needs of a request, checked
incoming   a client's request -> the hub form              outgoing   the hub form -> a request to an upstream
whole      whole answers, handed on, and from and to the hub form
stream     an upstream's stream, handed on                 reader, writer   from and to deltas of the hub form
"""

from __future__ import annotations

from collections.abc import Mapping

from svc.dialects.anthropic.faults import relayed_error, write_error
from svc.dialects.anthropic.head import read_head
from svc.dialects.anthropic.incoming import read_request
from svc.dialects.anthropic.outgoing import write_request
from svc.dialects.anthropic.reader import AnthropicReader
from svc.dialects.anthropic.stream import PassedStream
from svc.dialects.anthropic.whole import pass_answer, read_answer, write_answer
from svc.dialects.anthropic.writer import AnthropicWriter
from svc.dialects.base import Built, Dialect, Head, Passed, StreamReader, StreamWriter, Target
from svc.dialects.failures import find_message
from svc.dialects.flow import Pipe
from svc.dialects.passing import pass_request
from svc.errors import SvcError, UpstreamError
from svc.wire.chat import Answer, ChatRequest


class Anthropic(Dialect):
    """`Dialect` for `POST {base}/v1/messages`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(
            "anthropic",
            endpoint="/v1/messages",
            chat_path="/v1/messages",
            models_path="/v1/models",
            forwarded_headers=frozenset((b"anthropic-beta", b"anthropic-version")),
            request_id_header="request-id",
        )

    def head(self, raw: bytes) -> Head:
        return read_head(raw)

    def read_request(self, raw: bytes) -> ChatRequest:
        return read_request(raw)

    def write_answer(self, answer: Answer) -> bytes:
        return write_answer(answer)

    def writer(self, *, include_usage: bool) -> StreamWriter:
        return AnthropicWriter()  # whose clients always get usage

    def write_error(self, error: SvcError, request_id: str) -> bytes:
        return write_error(error, request_id)

    def credentials(self, key: str) -> tuple[tuple[str, str], ...]:
        version = ("anthropic-version", "2023-06-01")
        return (("x-api-key", key), version) if key else (version,)

    def write_request(self, request: ChatRequest, target: Target) -> Built:
        return write_request(request, target)

    def read_answer(self, raw: bytes) -> Answer:
        return read_answer(raw)

    def reader(self) -> StreamReader:
        return AnthropicReader()

    def read_error(self, raw: bytes) -> str | None:
        return find_message(raw)

    def relayed_error(self, status: int, headers: Mapping[bytes, bytes], raw: bytes) -> UpstreamError | None:
        return relayed_error(status, headers, raw)

    def pass_request(self, raw: bytes, head: Head, target: Target) -> Built:
        return pass_request(raw, head, target, ask_usage=False)

    def pass_answer(self, raw: bytes) -> Passed:
        return pass_answer(raw)

    def pass_stream(self, *, include_usage: bool, target: Target | None = None) -> Pipe:
        return PassedStream()


dialect: Dialect = Anthropic()
