"""Encodes a request to an upstream of the client's own dialect, with the client's bytes where they are unambiguous.

A body is unambiguous if each name of its top-level object occurs once and unescaped, so that the upstream reads the
same values. Otherwise, or if an override of the upstream applies, the body is decoded, changed and encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import msgspec

from svc.dialects.base import EncodedRequest, ModelProfile, RequestBody
from svc.dialects.call_ids import shorten_call_ids
from svc.dialects.json_spans import read_fields
from svc.dialects.routing_info import RoutingInfo
from svc.dialects.unsupported_fields import reject_shaping_field
from svc.dialects.validation import decode_client_fields, decode_client_object, encode_upstream_body
from svc.wire.chat import UpstreamOverrides

_FIELD_NAME: Final = re.compile(rb'"([a-z_]+)"\s*:')
_ESCAPED_LETTER: Final = re.compile(rb"\\u00[4-7]")
_ROUTING_FIELDS: Final = frozenset(
    (
        *("model", "messages", "system", "stream", "stream_options"),
        *("max_tokens", "max_completion_tokens", "n", "n_predict", "max_new_tokens", "min_tokens"),
    )
)
_USUAL_FIELDS: Final = _ROUTING_FIELDS.union(
    (
        *("temperature", "top_p", "top_k", "stop", "stop_sequences", "seed", "tools", "tool_choice", "user"),
        *("parallel_tool_calls", "response_format", "presence_penalty", "frequency_penalty", "reasoning_effort"),
        *("metadata", "store", "service_tier", "thinking", "prompt_cache_key", "logprobs", "logit_bias"),
        "top_logprobs",
    )
)
"""Common names in lower case. A body with only these names has no variant of another case."""
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
    if body.field_names is None:
        body.field_names, body.model_start, body.model_end = read_fields(raw, skeleton)
    has_stream_options = "stream_options" in body.field_names
    if (
        not body.field_names
        or find_case_variants(body.field_names)
        or (has_stream_options and not (routing_info.include_usage and profile.stream_usage))
        or (profile.needs_rewrite and _may_need_overrides(skeleton, profile.overrides))
    ):
        return _reencode(raw, profile, ask_usage=ask_usage)
    if routing_info.model != profile.model:
        if body.model_end == 0:
            return _reencode(raw, profile, ask_usage=ask_usage)
        model = msgspec.json.encode(profile.model)
        raw = b"".join((raw[: body.model_start], model, memoryview(raw)[body.model_end :]))
    if ask_usage and not has_stream_options:
        end = len(raw) - 1 if raw[-1] == _CLOSING_BRACE else raw.rindex(b"}")
        raw = (
            raw[:end] + _INCLUDE_USAGE_SUFFIX
            if end < MAX_COPIED_BODY_BYTES
            else b"".join((memoryview(raw)[:end], _INCLUDE_USAGE_SUFFIX))
        )
    return EncodedRequest(raw)


def _may_need_overrides(raw: bytes, overrides: UpstreamOverrides) -> bool:
    """Return whether the body can have a field with an override. Nested fields of the same name count too."""
    if b"\\u00" in raw and _ESCAPED_LETTER.search(raw) is not None:  # a nested name may be escaped
        return True
    names = set(_FIELD_NAME.findall(raw))
    if (overrides.min_temperature and b"temperature" in names) or (
        (overrides.thought_signature or overrides.short_call_ids) and b"tool_calls" in names
    ):
        return True
    listed = (*overrides.rejects, *overrides.renames)
    return any(field.rpartition(".")[2].encode() in names for field in listed)


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
    if overrides.thought_signature:
        _add_thought_signatures(body, overrides.thought_signature)
    if overrides.short_call_ids:
        shorten_call_ids(body)
    return dropped


def _add_thought_signatures(body: dict[str, Any], signature: str) -> None:
    """Add a signature to the first tool call of each message whose calls have none.

    Gemini 3 rejects a step without one (ai.google.dev/gemini-api/docs/thought-signatures). A client that does not know
    `extra_content` drops it, and so does one of another dialect.
    """
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if not isinstance(calls, list) or not calls or not all(isinstance(call, dict) for call in calls):
            continue
        if not any(call.get("extra_content") for call in calls):
            calls[0]["extra_content"] = {"google": {"thought_signature": signature}}


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


def find_case_variants(names: Collection[str]) -> tuple[str, ...]:
    """Return the names that differ only in case from a field that routing reads."""
    if _USUAL_FIELDS.issuperset(names):
        return ()
    all_names = "_".join(names)
    if all_names.isascii() and all_names.islower():
        return ()
    return tuple([name for name in names if name not in _ROUTING_FIELDS and _fold_case(name) in _ROUTING_FIELDS])


def _fold_case(name: str) -> str:
    """Fold a name as Go's encoding/json does before it compares ASCII names: U+212A to `k`, U+017F to `s`.

    They are the only letters outside ASCII that it folds into ASCII.
    """
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
            value = body.pop(name)
            reject_shaping_field(name, value)
            if value is not None and name != "stream_options":
                dropped.append(name)
    return tuple(dropped)


def _move_token_limit(body: dict[str, Any], name: str) -> None:
    """Rename the token limit to the one of two equivalent names that the upstream accepts."""
    other = _TOKEN_LIMIT_FIELDS[1 - _TOKEN_LIMIT_FIELDS.index(name)]
    value = body.pop(name, None)
    if value is not None and body.get(other) is None:
        body[other] = value


def _drop_from_messages(body: dict[str, Any], path: str) -> bool:
    """Remove a field from all messages, or from their tool calls. Return whether a value has been lost.

    Only chat requests have validated messages. Others can have any value.
    """
    owners = body.get("messages")
    list_name, _, name = path.rpartition("[].")
    if list_name:
        owners = _join_lists(owners, list_name)
    if not isinstance(owners, list):
        return False
    values = [owner.pop(name) for owner in owners if isinstance(owner, dict) and name in owner]
    return any(value is not None and value != [] for value in values)


def _join_lists(owners: Any, name: str) -> list[Any]:
    """Return the items of all lists with this name, such as the tool calls of all messages."""
    joined: list[Any] = []
    for owner in owners if isinstance(owners, list) else ():
        items = owner.get(name) if isinstance(owner, dict) else None
        if isinstance(items, list):
            joined.extend(items)
    return joined
