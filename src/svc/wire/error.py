"""Define the error object of the gateway's error responses: `{"error": {…}}`."""

from __future__ import annotations

import msgspec

from svc.errors import SvcError


class Problem(msgspec.Struct, frozen=True):
    """An error."""

    message: str
    """The cause, for a person."""
    type: str
    """The kind of error, as in the OpenAI API."""
    code: str
    """The error code."""
    param: str | None = None
    """The invalid field of the request."""


class ProblemBody(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: Problem
    """The error."""


def to_problem(error: SvcError) -> Problem:
    """Return the error object of an exception."""
    return Problem(message=error.message, type=error.type, code=error.code, param=error.param)


def encode_error_body(error: SvcError) -> bytes:
    """Return the JSON body of an error response in the OpenAI format, which is the gateway's own."""
    return msgspec.json.encode(ProblemBody(to_problem(error)))
