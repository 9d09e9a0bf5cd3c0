"""Whole answers of OpenAI upstreams: handed on as they are when nothing is wrong with them, else mended."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from svc.dialects.base import Passed
from svc.dialects.failures import failure_of
from svc.dialects.openai.shapes import FINISH, AnswerShape, UsageShape, mend_usage, passed_reason
from svc.dialects.openai.usage import usage_from, usage_of
from svc.dialects.reading import FIELDS, upstream_object
from svc.dialects.values import arguments_text, new_id, text_or, whole_or_now
from svc.errors import ProviderFailed

TEXT_FIELDS: Final = {"function": "arguments", "custom": "input"}
"""The field of a tool call's text, by the name of the object that holds it, which is also the call's type."""

_decode: Final = msgspec.json.Decoder(AnswerShape).decode
_FAULTS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def pass_answer(raw: bytes) -> Passed:
    """Raises ProviderFailed when it is not understandable, or what an error object in it means."""
    try:
        if not raw.isascii():
            raw.decode()
        return _passed(raw)
    except _FAULTS:
        pass  # mended below, or refused there with a better reason
    mended = mend_answer(upstream_object(raw))
    try:
        usage = usage_of(msgspec.convert(mended["usage"], UsageShape)) if mended.get("usage") else None
        return Passed(
            msgspec.json.encode(mended), usage, FINISH[mended["choices"][0]["finish_reason"]], mended["model"]
        )
    except (msgspec.ValidationError, RecursionError):
        raise ProviderFailed("The provider's answer was not understandable.") from None


def _passed(raw: bytes) -> Passed:
    """Raises one of _FAULTS for what is not in the published shape."""
    _, _, _, model, choices, usage, _ = FIELDS(_decode(raw))
    if usage is None:
        return Passed(raw, None, FINISH[choices[0].finish_reason], model)
    prompt, completion, total, of_prompt, of_completion = FIELDS(usage)
    told = usage_from(prompt, completion, total, of_prompt, of_completion)
    return Passed(raw, told, FINISH[choices[0].finish_reason], model)


def mend_answer(body: dict[str, Any]) -> dict[str, Any]:
    """The answer in the published shape; raises what an error object means, ProviderFailed for what is no answer."""
    choices = body.get("choices")
    if body.get("error"):
        raise failure_of(body["error"])
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        if body.get("object") == "error":
            raise failure_of(body)
        raise ProviderFailed("The provider's answer has no choices.")
    body.pop("error", None)
    mended = {**body, "id": text_or(body.get("id"), new_id("chatcmpl-")), "object": "chat.completion"}
    mended["created"] = whole_or_now(body.get("created"))
    mended["model"] = text_or(body.get("model"), "unknown")
    mended["choices"] = [_mend_choice(choice, position) for position, choice in enumerate(choices)]
    if "usage" in body:
        mended["usage"] = mend_usage(body["usage"])
    return mended


def _mend_choice(choice: dict[str, Any], position: int) -> dict[str, Any]:
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ProviderFailed("The provider's answer has a choice without a message.")
    index = choice.get("index")
    reason = choice.get("finish_reason")
    if reason is None:
        reason = next((name for name in ("tool_calls", "function_call") if message.get(name)), None)
    return {
        **choice,
        "index": index if type(index) is int and index >= 0 else position,
        "message": _mend_message(message),
        "finish_reason": passed_reason(reason),
    }


def _mend_message(message: dict[str, Any]) -> dict[str, Any]:
    mended = {**message, "role": "assistant", **split_content(message.get("content"))}
    calls = mended.pop("tool_calls", None)
    if isinstance(calls, list) and calls:
        mended["tool_calls"] = [_mend_call(call) for call in calls]
    return mended


def split_content(content: Any) -> dict[str, Any]:
    """`content` as text; vendors' lists of parts are joined, their thinking becomes `reasoning_content`."""
    if content is None or isinstance(content, str):
        return {"content": content}
    if not isinstance(content, list):
        raise ProviderFailed("The provider's answer has content that is not text.")
    thinking = "".join(_text_of(part.get("thinking")) for part in content if isinstance(part, dict))
    text = "".join(_text_of(part) for part in content)
    return {"content": text, "reasoning_content": thinking} if thinking else {"content": text}


def _text_of(part: Any) -> str:
    if isinstance(part, list):
        return "".join(_text_of(one) for one in part if not isinstance(one, list))  # no vendor nests them further
    if isinstance(part, dict):
        part = part.get("text")
    return part if isinstance(part, str) else ""


def payload_name(call: dict[str, Any]) -> str:
    """The field that holds a tool call's name and text; empty for an unknown type of call."""
    kind: str = call["type"]
    return kind if kind in TEXT_FIELDS else next((name for name in TEXT_FIELDS if isinstance(call.get(name), dict)), "")


def _mend_call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise ProviderFailed("The provider's answer has a tool call that is not an object.")
    kind = text_or(call.get("type"), "custom" if isinstance(call.get("custom"), dict) else "function")
    mended = {**call, "id": text_or(call.get("id"), new_id("call_")), "type": kind}
    name = payload_name(mended)
    if not name:
        return mended  # an unknown type of call goes on as it came
    payload, field = call.get(name), TEXT_FIELDS[name]
    if not isinstance(payload, dict) or not text_or(payload.get("name"), ""):
        raise ProviderFailed("The provider's answer has a tool call without a name.")
    return {**mended, name: {**payload, field: arguments_text(payload.get(field))}}
