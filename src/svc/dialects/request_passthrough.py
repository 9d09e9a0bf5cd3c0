"""Encodes a request to an upstream of the client's own dialect, with the client's bytes where they are unambiguous.

A body is unambiguous if each field that routing reads occurs once and unescaped, so that the upstream reads the same
values. Otherwise, or if an override of the upstream applies, the body is decoded, changed and encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from svc.dialects.base import EncodedRequest, ModelProfile, PassthroughCheck, RequestBody
from svc.dialects.json_spans import find_field_spans
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.unsupported_fields import reject_shaping_field
from svc.dialects.validation import decode_client_fields, decode_client_object, encode_upstream_body
from svc.wire.chat import UpstreamOverrides

_FIELD_NAME: Final = re.compile(rb'"([a-z_]+)"\s*:')
_ESCAPED_LETTER: Final = re.compile(rb"\\u00[4-7]")
_ROUTING_FIELD_PATTERN: Final = re.compile(
    rb'(?i)"[mns](?:odel|essages|tream(?:_options)?|ax_(?:completion_|new_)?tokens|ystem||_predict|in_tokens)"'
)
"""The fields that routing reads, in any case, grouped by first letter for speed. A match can also be a string value."""
_ROUTING_FIELDS: Final = frozenset(
    (
        *("model", "messages", "system", "stream", "stream_options"),
        *("max_tokens", "max_completion_tokens", "n", "n_predict", "max_new_tokens", "min_tokens"),
    )
)
_GO_CASE_FOLDED: Final = re.compile(rb"\xc5\xbf|\xe2\x84\xaa|\\u(?:017[fF]|212[aA])")
"""U+017F and U+212A, the only non-ASCII characters that Go's encoding/json folds to ASCII (`s` and `k`) in names."""
_MODEL_FIELD: Final = re.compile(rb'(?<!\\)("model"\s*:\s*)"(?:[^"\\]|\\.)*"')
"""The field `model`, and not the end of a long name, which the skeleton omits."""
_STREAM_OPTIONS_FIELD: Final = b'"stream_options"'
_CLOSING_BRACE: Final = 0x7D
MAX_COPIED_BODY_BYTES: Final = 16 * 1024
"""Up to this size, a body is cut with an additional copy, which costs less than avoiding it."""
_INCLUDE_USAGE_SUFFIX: Final = b',"stream_options":{"include_usage":true}}'
_TOKEN_LIMIT_FIELDS: Final = ("max_tokens", "max_completion_tokens")


def pass_through_request(
    body: RequestBody, routing_info: RoutingInfo, profile: ModelProfile, *, ask_usage: bool
) -> EncodedRequest:
    """Encode a request. `ask_usage` means that usage has to be requested with `stream_options`.

    Raises InvalidRequest for a field that the upstream rejects and that cannot be left out.
    """
    raw, skeleton = body.raw, body.skeleton or body.raw
    ask_usage = ask_usage and routing_info.stream and profile.stream_usage
    check = body.passthrough_check or _check_body(body, skeleton)
    if check.is_ambiguous and not profile.needs_rewrite:
        return _splice_fields(raw, routing_info, profile, ask_usage=ask_usage)
    if check.is_ambiguous or (check.has_stream_options and not (routing_info.include_usage and profile.stream_usage)):
        return _reencode(raw, profile, ask_usage=ask_usage)
    if profile.needs_rewrite and _may_need_overrides(skeleton, profile.overrides):
        return _reencode(raw, profile, ask_usage=ask_usage)
    if routing_info.model != profile.model:
        raw = _replace_model(raw, profile.model)
    if ask_usage and not check.has_stream_options:
        end = len(raw) - 1 if raw[-1] == _CLOSING_BRACE else raw.rindex(b"}")
        raw = (
            raw[:end] + _INCLUDE_USAGE_SUFFIX
            if end < MAX_COPIED_BODY_BYTES
            else b"".join((memoryview(raw)[:end], _INCLUDE_USAGE_SUFFIX))
        )
    return EncodedRequest(raw)


def _splice_fields(raw: bytes, routing_info: RoutingInfo, profile: ModelProfile, *, ask_usage: bool) -> EncodedRequest:
    """Forward a body in which a name that routing reads can be repeated, such as a tool's parameter `model`.

    Only the fields of the top-level object matter.
    """
    spans = find_field_spans(raw)
    if spans is None or find_case_variants(spans):
        return _reencode(raw, profile, ask_usage=ask_usage)
    if "stream_options" in spans and not (routing_info.include_usage and profile.stream_usage):
        return _reencode(raw, profile, ask_usage=ask_usage)
    end = raw.rindex(b"}")
    tail = _INCLUDE_USAGE_SUFFIX if ask_usage and "stream_options" not in spans else raw[end:]
    if routing_info.model == profile.model:
        return EncodedRequest(raw if tail is not _INCLUDE_USAGE_SUFFIX else raw[:end] + tail)
    start, stop = spans["model"]
    return EncodedRequest(b"".join((raw[:start], msgspec.json.encode(profile.model), raw[stop:end], tail)))


def _check_body(body: RequestBody, skeleton: bytes) -> PassthroughCheck:
    names: list[bytes] = _ROUTING_FIELD_PATTERN.findall(skeleton)
    body.passthrough_check = check = PassthroughCheck(
        is_ambiguous=_is_ambiguous(skeleton, names), has_stream_options=_STREAM_OPTIONS_FIELD in names
    )
    return check


def _is_ambiguous(raw: bytes, routing_fields: list[bytes]) -> bool:
    """Return whether a field that routing reads can be repeated, or has an escaped name or another case."""
    if not b"".join(routing_fields).islower():
        return True
    if len(set(routing_fields)) != len(routing_fields):  # at most a dozen names, since all are lower case
        keys = _FIELD_NAME.findall(raw)
        if any(keys.count(name[1:-1]) > 1 for name in set(routing_fields)):
            return True
    if 0x5C in raw and _ESCAPED_LETTER.search(raw) is not None:
        return True
    return (0x5C in raw or not raw.isascii()) and _GO_CASE_FOLDED.search(raw) is not None


def _may_need_overrides(raw: bytes, overrides: UpstreamOverrides) -> bool:
    """Return whether the body can have a field with an override. Nested fields of the same name count too."""
    names = set(_FIELD_NAME.findall(raw))
    if overrides.min_temperature and b"temperature" in names:
        return True
    listed = (*overrides.rejects, *overrides.renames)
    return any(field.rpartition(".")[2].encode() in names for field in listed)


def _replace_model(raw: bytes, model: str) -> bytes:
    """Replace the model. The name occurs once, as a field (see `_is_ambiguous`)."""
    encoded_model = msgspec.json.encode(model)
    return _MODEL_FIELD.sub(lambda found: found.group(1) + encoded_model, raw, count=1)


def _reencode(raw: bytes, profile: ModelProfile, *, ask_usage: bool) -> EncodedRequest:
    """Encode the body again. Values keep their bytes unless the model has overrides."""
    body = decode_client_object(raw) if profile.needs_rewrite else decode_client_fields(raw)
    body["model"] = profile.model
    dropped = apply_overrides(body, profile.overrides, ask_usage=ask_usage)
    return EncodedRequest(encode_upstream_body(body), dropped)


def apply_overrides(body: dict[str, Any], overrides: UpstreamOverrides, *, ask_usage: bool) -> tuple[str, ...]:
    """Change a body as the upstream requires. Returns the names of dropped fields. Raises InvalidRequest."""
    dropped = _drop_case_variants(body) + drop_rejected_fields(body, overrides.rejects)
    if ask_usage:
        body["stream_options"] = {**_decode_stream_options(body), "include_usage": True}
    elif not overrides.stream_usage:
        body.pop("stream_options", None)
    for old, new in overrides.renames.items():
        if old in body:
            body.setdefault(new, body.pop(old))
    temperature = body.get("temperature") if overrides.min_temperature else None
    if temperature is not None and temperature < overrides.min_temperature:
        body["temperature"] = overrides.min_temperature
    return dropped


def _decode_stream_options(body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    if isinstance(options, msgspec.Raw):
        options = msgspec.json.decode(options)
    return options or {}


def _drop_case_variants(body: dict[str, Any]) -> tuple[str, ...]:
    """Drop fields that differ only in case from one that routing reads.

    Go's encoding/json ignores case and uses the last match. `Model` would bypass the allowed models, and `Max_Tokens`
    the token limits.
    """
    names = find_case_variants(body)
    for name in names:
        del body[name]
    return names


def find_case_variants(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that differ only in case from a field that routing reads."""
    return tuple([name for name in names if name not in _ROUTING_FIELDS and _fold_case(name) in _ROUTING_FIELDS])


def _fold_case(name: str) -> str:
    """Fold a name as Go's encoding/json does before it compares ASCII names: U+212A to `k`, U+017F to `s`."""
    return name.lower().replace("\u017f", "s")


def drop_rejected_fields(body: dict[str, Any], rejects: Collection[str]) -> tuple[str, ...]:
    """Remove the fields that the upstream rejects, and return their names. Raises InvalidRequest for shaping fields."""
    dropped = []
    for name in rejects:
        if name in _TOKEN_LIMIT_FIELDS:
            _move_token_limit(body, name)
        elif name.startswith("messages[]."):
            if _drop_from_messages(body, name.removeprefix("messages[].")):
                dropped.append(name)
        elif name in body:
            reject_shaping_field(name, body.pop(name))
            if name != "stream_options":
                dropped.append(name)
    return tuple(dropped)


def _move_token_limit(body: dict[str, Any], name: str) -> None:
    """Rename the token limit to the one of two equivalent names that the upstream accepts."""
    other = _TOKEN_LIMIT_FIELDS[1 - _TOKEN_LIMIT_FIELDS.index(name)]
    value = body.pop(name, None)
    if value is not None and body.get(other) is None:
        body[other] = value


def _drop_from_messages(body: dict[str, Any], name: str) -> bool:
    """Remove a field from all messages. Only chat requests have validated messages; others can have any value."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return False
    changed = [message for message in messages if isinstance(message, dict) and name in message]
    for message in changed:
        del message[name]
    return bool(changed)
