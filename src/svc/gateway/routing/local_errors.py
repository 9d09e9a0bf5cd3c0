"""Describes errors of llama.cpp's server to the client of a model of this machine, in the gateway's own words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any, Final

from svc.dialects.upstream_errors import REPORTED_FAILURE_PREFIX, decode_error_object, extract_message
from svc.dialects.validation import decode_client_object
from svc.errors import InvalidRequest, ProviderFailed, SvcError

_INVALID_REQUEST_REASON: Final = re.compile(
    r"empty grammar stack|failed to parse (?:the )?(?:grammar|tools|messages)", re.I
)
"""Reasons of errors with status 500 that the request causes. A grammar that nothing fulfils fails at a token."""
_SCHEMA_REASON: Final = re.compile(r"grammar|json_schema|\bschema\b", re.I)
_SCHEMA_MESSAGE: Final = "The model of this machine cannot enforce this JSON schema. Use a simpler one."
_GRAMMAR_MESSAGE: Final = "The model of this machine cannot use this grammar. Write it in the GBNF of llama.cpp."

_OUT_OF_MEMORY: Final = "bad_alloc"
_TOO_LONG_TYPE: Final = "exceed_context_size_error"
_TOO_LONG_MESSAGE: Final = re.compile(r"too large to process|context size", re.I)
_TOKEN_COUNT: Final = re.compile(r"(?:input|request) \((\d+) tokens\)")
_WINDOW_SIZE: Final = re.compile(r"context size \((\d+) tokens\)")
_REASONS: Final = (
    (
        re.compile(r"jinja|chat.?template|alternat|system role", re.I),
        "The chat template of this model does not accept this order or kind of messages.",
        "messages",
    ),
    (re.compile(r"parse (?:the )?tools", re.I), "The model of this machine cannot read these tools.", "tools"),
    (re.compile(r"empty", re.I), "The input is empty.", None),
)
"""A pattern of llama.cpp's message, the gateway's message, and the field. None means that of the error."""
_SCHEMA_EXTENSIONS: Final = ("grammar", "json_schema")
"""Fields of llama.cpp's own, which a client of chat completions may send."""
MAX_LOGGED_REASON_CHARS: Final = 300
_QUOTED_PART: Final = re.compile(r"[{\"'`]|(?<=piece):")
"""From here on, llama.cpp's message may repeat a part of the request or response, which does not belong into a log."""
_OTHER_REASON: Final = "The model of this machine cannot process this request. The gateway's log has the reason."
_FULL_WINDOW_MESSAGE: Final = (
    "The context window of this model is full. Requests at the same time share it. The response is incomplete."
)
_STREAM_MESSAGE: Final = "The model of this machine failed. The gateway's log has the reason."


def describe_local_error(
    status: int, raw: bytes, request: bytes, map_field_name: Callable[[str], str]
) -> InvalidRequest | None:
    """Return the error for an invalid request, with llama.cpp's message as `reason`. None for others.

    `request` is the client's body. `map_field_name` returns the client's name of a field of chat completions.
    """
    error = decode_error_object(raw)
    message = extract_message(error) or ""
    details: dict[str, Any] = error if isinstance(error, dict) else {}
    is_too_long = details.get("type") == _TOO_LONG_TYPE or _TOO_LONG_MESSAGE.search(message) is not None
    if status not in (400, 413, 422) and not is_too_long and not _INVALID_REQUEST_REASON.search(message):
        return None
    param = details.get("param")
    param = map_field_name(param) if isinstance(param, str) else None
    if is_too_long:
        return _describe_length(details, message, param or map_field_name("messages"))
    reason = _strip_quoted_part(message)
    described = _describe_reason(reason, param, request, map_field_name)
    described.reason = reason
    return described


def is_out_of_memory(raw: bytes) -> bool:
    """Return whether llama.cpp reports that it has no memory left."""
    return _strip_quoted_part(extract_message(decode_error_object(raw)) or "").endswith(_OUT_OF_MEMORY)


def describe_local_stream_error(error: SvcError) -> SvcError:
    """Return the error for the client of a stream that contains an error of llama.cpp, with its message as `reason`.

    Other errors are returned as they are.
    """
    is_reported = isinstance(error, InvalidRequest) or (
        isinstance(error, ProviderFailed) and error.is_reported_by_provider
    )
    if not is_reported:
        return error
    reason = _strip_quoted_part(error.message.removeprefix(REPORTED_FAILURE_PREFIX))
    message = _FULL_WINDOW_MESSAGE if _TOO_LONG_MESSAGE.search(reason) else _STREAM_MESSAGE
    return ProviderFailed(message, is_reported_by_provider=True, reason=reason)


def _strip_quoted_part(message: str) -> str:
    return _QUOTED_PART.split(message, 1)[0][:MAX_LOGGED_REASON_CHARS].rstrip()


def _describe_length(details: dict[str, Any], message: str, param: str) -> InvalidRequest:
    tokens, window = _find_count(details, "n_prompt_tokens", message), _find_count(details, "n_ctx", message)
    return length_error(param, str(window or ""), str(tokens or ""))


def length_error(param: str, window: str, tokens: str) -> InvalidRequest:
    """Return the error for numbers of tokens, which are empty if they are unknown."""
    text = f"`{param}` is longer than the context window of this model"
    text += f", {window} tokens" if window else ""
    return InvalidRequest(f"{text}: it has {tokens} tokens." if tokens else f"{text}.", param=param)


def _find_count(details: dict[str, Any], name: str, message: str) -> int:
    """Return a number of tokens from a field of the error, or else from its message. 0 if it has none."""
    value = details.get(name)
    if type(value) is int:
        return value
    match = (_TOKEN_COUNT if name == "n_prompt_tokens" else _WINDOW_SIZE).search(message)
    return int(match[1]) if match is not None else 0


def _describe_reason(
    message: str, param: str | None, request: bytes, map_field_name: Callable[[str], str]
) -> InvalidRequest:
    if _SCHEMA_REASON.search(message):
        field = find_schema_field(request, map_field_name)
        return InvalidRequest(_GRAMMAR_MESSAGE if field == "grammar" else _SCHEMA_MESSAGE, param=field)
    for pattern, text, field in _REASONS:
        if pattern.search(message):
            return InvalidRequest(text, param=map_field_name(field) if field else param)
    return InvalidRequest(_OTHER_REASON, param=param)


def find_schema_field(request: bytes, map_field_name: Callable[[str], str]) -> str | None:
    """Return the client's field with the schema or grammar that llama.cpp rejects, whose message does not name it."""
    fields: dict[str, Any] = {}
    with contextlib.suppress(InvalidRequest):
        fields = decode_client_object(request)
    if _has_forced_tools(fields):
        return map_field_name("tools")  # the gateway sends them as the schema of the response
    response_format = map_field_name("response_format")
    value: Any = fields
    for name in response_format.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, dict) and value.get("type") != "text":
        return response_format
    names = [name for name in (*_SCHEMA_EXTENSIONS, map_field_name("tools")) if fields.get(name)]
    return names[0] if names else None


def _has_forced_tools(request: dict[str, Any]) -> bool:
    """Return whether the response to a client's request must be a call of one of its tools."""
    choice = request.get("tool_choice")
    if isinstance(choice, dict):
        allowed = choice.get("allowed_tools", choice)  # chat completions have the mode one level below
        choice = allowed.get("mode", choice.get("type")) if isinstance(allowed, dict) else choice.get("type")
    return bool(request.get("tools")) and choice not in (None, "auto", "none")
