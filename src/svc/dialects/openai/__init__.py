"""The dialect of OpenAI's chat completions, which most vendors speak with an accent.

head      what routing needs of a request, checked           passing   a request to an upstream of the same dialect
answer    whole answers                                      stream    an upstream's stream, put right on its way
"""

from __future__ import annotations

from svc.dialects.base import Built, Head, Passed, Pipe
from svc.dialects.failures import find_message
from svc.dialects.openai.answer import pass_answer
from svc.dialects.openai.head import read_head
from svc.dialects.openai.passing import pass_request
from svc.dialects.openai.stream import PassedStream
from svc.errors import SvcError
from svc.wire.chat import Target
from svc.wire.problem import encode_problem


class OpenAI:
    """`Dialect` for `POST {base}/chat/completions`."""

    name = "openai"
    chat_path = "/chat/completions"
    models_path = "/models"

    def head(self, raw: bytes) -> Head:
        return read_head(raw)

    def write_error(self, error: SvcError, request_id: str) -> bytes:
        return encode_problem(error)

    def credentials(self, key: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {key}"),)

    def read_error(self, raw: bytes) -> str | None:
        return find_message(raw)

    def pass_request(self, raw: bytes, head: Head, target: Target) -> Built:
        return pass_request(raw, head, target)

    def pass_answer(self, raw: bytes) -> Passed:
        return pass_answer(raw)

    def pass_stream(self, *, include_usage: bool) -> Pipe:
        return PassedStream(include_usage=include_usage)


dialect = OpenAI()
