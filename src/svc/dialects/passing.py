"""A request to an upstream of the client's own dialect: the client's own bytes where one can be sure of them.

Sure: every field that routing looks at stands there once and unescaped, so that the upstream reads the same as we did.
Otherwise, or when a quirk of the upstream asks for a change, the body is decoded, changed and encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from svc.dialects.base import Built, Head, Seen, Target
from svc.dialects.hints import refuse_forming
from svc.dialects.reading import decode_fields, decode_object, encode_request
from svc.dialects.spans import field_spans
from svc.wire.chat import Quirks

_KEY: Final = re.compile(rb'"([a-z_]+)"\s*:')
_ESCAPED_LETTER: Final = re.compile(rb"\\u00[4-7]")
_READ: Final = re.compile(
    rb'(?i)"[mns](?:odel|essages|tream(?:_options)?|ax_(?:completion_|new_)?tokens|ystem||_predict|in_tokens)"'
)
"""The fields that routing looks at, as they stand in JSON, in any case; by their first letter, which is quickest. What
it finds may also be a text of these letters."""
_FIELDS: Final = frozenset(
    (
        *("model", "messages", "system", "stream", "stream_options"),
        *("max_tokens", "max_completion_tokens", "n", "n_predict", "max_new_tokens", "min_tokens"),
    )
)
_FOLDED: Final = re.compile(rb"\xc5\xbf|\xe2\x84\xaa|\\u(?:017[fF]|212[aA])")
"""U+017F and U+212A, which Go reads as `s` and `k` in the name of a field: no others beyond ASCII are ASCII to it."""
_MODEL: Final = re.compile(rb'(?<!\\)("model"\s*:\s*)"(?:[^"\\]|\\.)*"')
"""The field, and not the end of a long name, which the outline leaves out."""
_OPTIONS: Final = b'"stream_options"'
_BRACE: Final = 0x7D
SHORT: Final = 16 * 1024
"""Bytes of a body that are cut by a copy more: it costs less than to spare it."""
_ASK_USAGE: Final = b',"stream_options":{"include_usage":true}}'
_LIMITS: Final = ("max_tokens", "max_completion_tokens")


def pass_request(raw: bytes, head: Head, target: Target, *, ask_usage: bool) -> Built:
    """`ask_usage`: the dialect has `stream_options`, and usage comes only to those who ask.

    Raises InvalidRequest for a field that the upstream rejects and that cannot be left out.
    """
    outline = head.outline or raw
    ask_usage = ask_usage and head.stream and target.stream_usage
    seen = head.seen or _look(head, outline)
    if seen.ambiguous and not target.mends:
        return _pass_by_spans(raw, head, target, ask_usage=ask_usage)
    if seen.ambiguous or (seen.options and not (head.include_usage and target.stream_usage)):
        return _rebuild(raw, target, ask_usage=ask_usage)
    if target.mends and _touched(outline, target.quirks):
        return _rebuild(raw, target, ask_usage=ask_usage)
    body = raw
    if head.model != target.model:
        body = _replace_model(raw, target.model)
    if ask_usage and not seen.options:
        end = len(body) - 1 if body[-1] == _BRACE else body.rindex(b"}")
        body = body[:end] + _ASK_USAGE if end < SHORT else b"".join((memoryview(body)[:end], _ASK_USAGE))
    return Built(body)


def _pass_by_spans(raw: bytes, head: Head, target: Target, *, ask_usage: bool) -> Built:
    """Forward a body in which a name that routing reads may stand twice, such as a tool's parameter `model`.

    Only the fields of the outermost object count.
    """
    spans = field_spans(raw)
    if spans is None or other_cases(spans):
        return _rebuild(raw, target, ask_usage=ask_usage)
    if "stream_options" in spans and not (head.include_usage and target.stream_usage):
        return _rebuild(raw, target, ask_usage=ask_usage)
    end = raw.rindex(b"}")
    tail = _ASK_USAGE if ask_usage and "stream_options" not in spans else raw[end:]
    if head.model == target.model:
        return Built(raw if tail is not _ASK_USAGE else raw[:end] + tail)
    start, stop = spans["model"]
    return Built(b"".join((raw[:start], msgspec.json.encode(target.model), raw[stop:end], tail)))


def _look(head: Head, outline: bytes) -> Seen:
    found: list[bytes] = _READ.findall(outline)
    head.seen = seen = Seen(ambiguous=_ambiguous(outline, found), options=_OPTIONS in found)
    return seen


def _ambiguous(raw: bytes, found: list[bytes]) -> bool:
    """A field that was read could stand there twice, or under an escaped name, or under another case."""
    if not b"".join(found).islower():
        return True
    if len(set(found)) != len(found):  # a dozen names at most, since all of them are lower case
        keys = _KEY.findall(raw)
        if any(keys.count(name[1:-1]) > 1 for name in set(found)):
            return True
    if 0x5C in raw and _ESCAPED_LETTER.search(raw) is not None:
        return True
    return (0x5C in raw or not raw.isascii()) and _FOLDED.search(raw) is not None


def _touched(raw: bytes, quirks: Quirks) -> bool:
    """The body may have a field that a quirk is about; nested fields of the same name count too."""
    names = set(_KEY.findall(raw))
    if quirks.min_temperature and b"temperature" in names:
        return True
    listed = (*quirks.rejects, *quirks.renames)
    return any(field.rpartition(".")[2].encode() in names for field in listed)


def _replace_model(raw: bytes, model: str) -> bytes:
    """The name stands there once, as a field (see `_ambiguous`)."""
    name = msgspec.json.encode(model)
    return _MODEL.sub(lambda found: found.group(1) + name, raw, count=1)


def _rebuild(raw: bytes, target: Target, *, ask_usage: bool) -> Built:
    """Encode the body again. Each value keeps its bytes, unless the target has quirks."""
    body = decode_object(raw) if target.mends else decode_fields(raw)
    body["model"] = target.model
    dropped = apply_quirks(body, target.quirks, ask_usage=ask_usage)
    return Built(encode_request(body), dropped)


def apply_quirks(body: dict[str, Any], quirks: Quirks, *, ask_usage: bool) -> tuple[str, ...]:
    """Makes a body one that the upstream takes; returns the names of what was left out. Raises InvalidRequest."""
    dropped = _drop_other_cases(body) + drop_rejected(body, quirks.rejects)
    if ask_usage:
        body["stream_options"] = {**_stream_options(body), "include_usage": True}
    elif not quirks.stream_usage:
        body.pop("stream_options", None)
    for old, new in quirks.renames.items():
        if old in body:
            body.setdefault(new, body.pop(old))
    temperature = body.get("temperature") if quirks.min_temperature else None
    if temperature is not None and temperature < quirks.min_temperature:
        body["temperature"] = quirks.min_temperature
    return dropped


def _stream_options(body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    if isinstance(options, msgspec.Raw):
        options = msgspec.json.decode(options)
    return options or {}


def _drop_other_cases(body: dict[str, Any]) -> tuple[str, ...]:
    """Upstreams in Go read names in any case, and take the last: `Model` would be a model that nobody has allowed, and
    `Max_Tokens` more than was counted.
    """
    names = other_cases(body)
    for name in names:
        del body[name]
    return names


def other_cases(names: Iterable[str]) -> tuple[str, ...]:
    """The names that differ only in case from a field that routing reads."""
    return tuple([name for name in names if name not in _FIELDS and _fold(name) in _FIELDS])


def _fold(name: str) -> str:
    """Fold a name as Go's encoding/json does before it compares ASCII names: U+212A to `k`, U+017F to `s`."""
    return name.lower().replace("\u017f", "s")


def drop_rejected(body: dict[str, Any], rejects: Collection[str]) -> tuple[str, ...]:
    """Takes out what the upstream rejects; returns the names. Raises InvalidRequest (see `hints.FORMING`)."""
    dropped = []
    for name in rejects:
        if name in _LIMITS:
            _other_limit(body, name)
        elif name.startswith("messages[]."):
            if _drop_from_messages(body, name.removeprefix("messages[].")):
                dropped.append(name)
        elif name in body:
            refuse_forming(name, body.pop(name))
            if name != "stream_options":
                dropped.append(name)
    return tuple(dropped)


def _other_limit(body: dict[str, Any], name: str) -> None:
    """The upstream takes one of the two names; they mean the same."""
    other = _LIMITS[1 - _LIMITS.index(name)]
    value = body.pop(name, None)
    if value is not None and body.get(other) is None:
        body[other] = value


def _drop_from_messages(body: dict[str, Any], name: str) -> bool:
    found = [message for message in body["messages"] if name in message]
    for message in found:
        del message[name]
    return bool(found)
