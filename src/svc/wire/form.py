"""Parse the fields of a JSON body or of a command line into a struct, with errors in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from svc.errors import InvalidRequest

Form = TypeVar("Form")

_TYPE_WORDS = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
}
_MSGSPEC_TYPE = re.compile(r"`(\w+(?: \| \w+)*)`")
"""Matches a type in a msgspec error, such as `int | null`."""
_BOUND_WORDS = (
    (" of length >= ", " with a length of at least "),
    (" of length <= ", " with a length of at most "),
    (" >= ", " of at least "),
    (" <= ", " of at most "),
    (" > ", " above "),
    (" < ", " below "),
)


def _keep_text(name: str, text: str) -> str:
    return text


def parse_form(kind: type[Form], fields: Any, explain: Callable[[str, str], str] = _keep_text) -> Form:
    """Parse JSON bytes, or the fields of a command line. Raises InvalidRequest with the name of the invalid field.

    `explain` gets the name of the field and the error, and returns the text of the error.
    """
    try:
        if isinstance(fields, bytes):
            return msgspec.json.decode(fields or b"{}", type=kind)
        return msgspec.convert(fields, kind)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        text, _, location = str(error).partition(" - at `")
        name = (
            re.sub(r"^(?:key` in `)?\$\.?|[.\[`].*$", "", location) or (re.findall(r"field `(\w+)`", text) or [""])[0]
        )
        text = explain(name, _MSGSPEC_TYPE.sub(lambda match: _describe_type(match[1]), text))
        for symbol, words in _BOUND_WORDS:
            text = text.replace(symbol, words)
        text = re.sub(r"^Object contains unknown field.*", "there is no such field", text)
        text = re.sub(r"^Object missing required field.*", "it is missing", text)
        raise InvalidRequest(f"{name or 'The body'}: {text[:1].lower()}{text[1:]}.", param=name or None) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None


def _describe_type(msgspec_type: str) -> str:
    return " or ".join(_TYPE_WORDS.get(name, name) for name in msgspec_type.split(" | "))
