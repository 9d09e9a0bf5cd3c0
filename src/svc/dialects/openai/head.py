"""What routing needs of an OpenAI request, and the checks before any upstream is called. On the hot path."""

from __future__ import annotations

from typing import Final

import msgspec

from svc.dialects.base import Head
from svc.dialects.openai.asked import Body, ResponseFormat
from svc.dialects.reading import FIELDS, decode_outline
from svc.errors import InvalidRequest

_BODY: Final = msgspec.json.Decoder(Body)
_NONE: Final = [None, None, None, None]


def read_head(raw: bytes) -> Head:
    """Raises InvalidRequest that names the field."""
    body, outline = decode_outline(_BODY, raw)
    model, messages, stream, options, max_tokens, max_completion_tokens, _, _, answers, *others = FIELDS(body)
    for index, message in enumerate(messages):
        if message.content is None and message.role not in ("assistant", "function"):
            path = f"messages[{index}].content"
            raise InvalidRequest(f"`{path}` is required for the role `{message.role}`.", param=path)
    head = Head(
        model=model,
        stream=bool(stream),
        include_usage=bool(stream and options and options.include_usage),
        max_tokens=max(max_tokens or 0, max_completion_tokens or 0) or None,  # upstreams differ in which they know
        answers=answers or 1,
        outline=outline,
    )
    if others != _NONE:
        *limits, form = others
        _note_other_limits(head, *limits)
        if form is not None:
            _check_format(form)
    return head


def _check_format(form: ResponseFormat) -> None:
    """Refuse a form without its schema, as OpenAI does: other servers would ignore it."""
    if form.type == "json_schema" and (form.json_schema is None or form.json_schema.schema is None):
        path = "response_format.json_schema" + ("" if form.json_schema is None else ".schema")
        raise InvalidRequest(f"`{path}` is required.", param=path)


def _note_other_limits(head: Head, predicted: float | None, new: float | None, least: float | None) -> None:
    """Note limits that only some upstreams read. Others read `max_tokens`, so these only raise the reservation."""
    head.least_reserved = int(max(predicted or 0, new or 0, least or 0, 0))
    if predicted is not None and predicted < 0:
        head.endless = "n_predict"
    elif new is not None and new < 0:
        head.endless = "max_new_tokens"
