"""Decodes a Responses request for an upstream of another dialect.

Public documents: platform.openai.com/docs/api-reference/responses/create, and openresponses.org/specification.
"""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.base import RequestBody
from svc.dialects.request_values import Effort
from svc.dialects.responses.input_items import DecodedMessage, InputDecoder
from svc.dialects.responses.request_rules import check_limits
from svc.dialects.responses.request_schema import ResponsesBody
from svc.dialects.responses.stored import insert_earlier_items
from svc.dialects.responses.tools import ToolSet, decode_tool_choice, decode_tools
from svc.dialects.validation import convert_client_value, decode_client_object
from svc.errors import InvalidRequest
from svc.wire.chat import ChatRequest, ResponseFormat

ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"
"""The value of `include` that requests the opaque content of reasoning items."""
_DEFAULT_SERVICE_TIERS: Final = (None, "auto", "default")


class ResponsesRequest:
    """A request in the canonical chat, with what its response repeats."""

    def __init__(
        self,
        chat: ChatRequest,
        messages: list[DecodedMessage],
        fields: dict[str, Any],
        tool_set: ToolSet,
        *,
        includes_encrypted_reasoning: bool = False,
        is_stored: bool = False,
    ) -> None:
        self.chat = chat
        self.messages = messages
        """The messages of `chat`, with their fields in the request."""
        self.fields = fields
        """The fields of the request body."""
        self.tool_set = tool_set
        self.includes_encrypted_reasoning = includes_encrypted_reasoning
        self.is_stored = is_stored


def decode_request(request: RequestBody) -> ResponsesRequest:
    """Decode a request. Raises InvalidRequest with the field, also for features that cannot be translated."""
    fields = decode_client_object(request.raw)
    expanded = fields if request.earlier_items is None else insert_earlier_items(fields, request.earlier_items)
    body: ResponsesBody = convert_client_value(expanded, ResponsesBody, "")
    check_limits(fields, body)
    _reject_untranslatable(body, is_stored=request.is_stored)
    tool_set = decode_tools(body.tools or [])
    choice = decode_tool_choice(body.tool_choice, tool_set)
    decoder = InputDecoder()
    if body.instructions:
        decoder.add_instructions(body.instructions)
    earlier = request.earlier_items.conversation if request.earlier_items is not None else []
    decoder.add_input(body.input or [], earlier_items=len(earlier))
    messages = decoder.messages()
    chat = ChatRequest(
        model=body.model,
        messages=[decoded.message for decoded in messages],
        stream=bool(body.stream),
        include_usage=True,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        tools=tool_set.definitions,
        tool_choice=choice if tool_set.definitions else None,
        parallel_tool_calls=body.parallel_tool_calls if tool_set.definitions else None,
        response_format=_decode_format(body),
        effort=_decode_effort(body),
        user=body.user or body.safety_identifier,
        source="responses",
        omitted=list(dict.fromkeys([*_omitted_fields(fields, body), *tool_set.dropped, *decoder.dropped])),
    )
    if not any(message.parts for message in chat.messages):
        raise InvalidRequest("`input` has no message.", param="input")
    # A stored response keeps the upstream's own blocks, since a later request sends them back.
    includes_reasoning = request.is_stored or ENCRYPTED_REASONING in (body.include or [])
    return ResponsesRequest(
        chat,
        messages,
        fields,
        tool_set,
        includes_encrypted_reasoning=includes_reasoning,
        is_stored=request.is_stored,
    )


def _reject_untranslatable(body: ResponsesBody, *, is_stored: bool) -> None:
    """Raise InvalidRequest for features that need the state or the platform of a provider."""
    store_hint = "set `store = true` in the table [responses] of its configuration."
    hint = "or use `previous_response_id`." if is_stored else f"or use `previous_response_id` and {store_hint}"
    for name, alternative in (("previous_response_id", f"or {store_hint}"), ("conversation", hint)):
        if getattr(body, name) is not None:
            message = f"The gateway keeps nothing for `{name}`: send the whole conversation in `input`, {alternative}"
            raise InvalidRequest(message, param=name)
    for name in ("background", "prompt", "top_logprobs"):
        value = getattr(body, name)
        if value or value == {}:
            raise InvalidRequest(f"The provider of this model does not support `{name}`.", param=name)


def _omitted_fields(fields: dict[str, Any], body: ResponsesBody) -> list[str]:
    """Return the names of fields that have no effect."""
    names = [name for name, value in fields.items() if name not in _UNDERSTOOD_FIELDS and value is not None]
    if body.service_tier not in _DEFAULT_SERVICE_TIERS:
        names.append("service_tier")
    if body.truncation not in (None, "disabled"):
        names.append("truncation")
    if body.text is not None and body.text.verbosity is not None:
        names.append("text.verbosity")
    if body.text is not None and body.text.format is not None and body.text.format.description is not None:
        names.append("text.format.description")
    if set(body.include or []) - {ENCRYPTED_REASONING}:
        names.append("include")
    return names


_UNDERSTOOD_FIELDS: Final = frozenset(ResponsesBody.__struct_fields__) - {"max_tool_calls"}
"""Fields that have an effect, or can have one."""


def _decode_effort(body: ResponsesBody) -> str | None:
    """Return the effort. Raises InvalidRequest for an unknown one, which only the provider's own API may know."""
    effort_type: Any = Effort | None
    effort: str | None = convert_client_value(body.reasoning and body.reasoning.effort, effort_type, "reasoning.effort")
    return effort


def _decode_format(body: ResponsesBody) -> ResponseFormat | None:
    text_format = body.text.format if body.text is not None else None
    if text_format is None or text_format.type == "text":
        return None
    if text_format.type == "json_object":
        return ResponseFormat("json_object")
    return ResponseFormat("json_schema", text_format.name, text_format.schema, text_format.strict)
