"""The dialect of OpenAI's chat completions, which most vendors speak with an accent.

head       what routing needs of a request, checked
incoming   a client's request -> the hub form; outgoing: the hub form -> a request to an upstream
answer     whole answers, put right on their way; whole: from and to the hub form
stream     an upstream's stream, put right on its way; reader, writer: from and to deltas of the hub form
"""

from __future__ import annotations

import msgspec

from svc.dialects.base import Built, Dialect, Head, Passed, StreamReader, StreamWriter, Target
from svc.dialects.failures import find_message
from svc.dialects.flow import Pipe
from svc.dialects.openai.answer import pass_answer
from svc.dialects.openai.head import read_head
from svc.dialects.openai.incoming import read_request
from svc.dialects.openai.outgoing import write_request
from svc.dialects.openai.reader import OpenAIReader
from svc.dialects.openai.series import takes_only_completion_tokens
from svc.dialects.openai.stream import PassedStream
from svc.dialects.openai.whole import read_answer, write_answer
from svc.dialects.openai.writer import OpenAIWriter
from svc.dialects.passing import pass_request
from svc.errors import SvcError
from svc.wire.chat import Answer, ChatRequest, Quirks
from svc.wire.problem import encode_problem


class OpenAI(Dialect):
    """`Dialect` for `POST {base}/chat/completions`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(
            "openai", endpoint="/v1/chat/completions", chat_path="/chat/completions", models_path="/models"
        )

    def head(self, raw: bytes) -> Head:
        return read_head(raw)

    def read_request(self, raw: bytes) -> ChatRequest:
        return read_request(raw)

    def write_answer(self, answer: Answer) -> bytes:
        return write_answer(answer)

    def writer(self, *, include_usage: bool) -> StreamWriter:
        return OpenAIWriter(include_usage=include_usage)

    def write_error(self, error: SvcError, request_id: str) -> bytes:
        return encode_problem(error)

    def credentials(self, key: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {key}"),) if key else ()

    def model_quirks(self, model: str, quirks: Quirks) -> Quirks:
        if not takes_only_completion_tokens(model) or "max_tokens" in quirks.rejects:
            return quirks
        return msgspec.structs.replace(quirks, rejects=(*quirks.rejects, "max_tokens"))

    def write_request(self, request: ChatRequest, target: Target) -> Built:
        return write_request(request, target)

    def read_answer(self, raw: bytes) -> Answer:
        return read_answer(raw)

    def reader(self) -> StreamReader:
        return OpenAIReader()

    def read_error(self, raw: bytes) -> str | None:
        return find_message(raw)

    def pass_request(self, raw: bytes, head: Head, target: Target) -> Built:
        return pass_request(raw, head, target, ask_usage=True)

    def pass_answer(self, raw: bytes) -> Passed:
        return pass_answer(raw)

    def pass_stream(self, *, include_usage: bool, target: Target | None = None) -> Pipe:
        return PassedStream(include_usage=include_usage, known=target.known if target is not None else None)


dialect: Dialect = OpenAI()
