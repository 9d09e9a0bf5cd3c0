"""The error object that every answer of ours carries when it fails: `{"error": {…}}`."""

from __future__ import annotations

import msgspec

from svc.errors import SvcError


class Problem(msgspec.Struct, frozen=True):
    """`error` of an error answer; `param` names the field at fault or is null."""

    message: str
    type: str
    code: str
    param: str | None = None


class ProblemBody(msgspec.Struct, frozen=True):
    """The whole body: `{"error": {...}}`."""

    error: Problem


def to_problem(error: SvcError) -> Problem:
    """The error object of an exception."""
    return Problem(message=error.message, type=error.type, code=error.code, param=error.param)


def encode_error_body(error: SvcError) -> bytes:
    """The JSON body of an error answer in the OpenAI shape, which is the gateway's own."""
    return msgspec.json.encode(ProblemBody(to_problem(error)))
