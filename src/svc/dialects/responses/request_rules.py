"""Rules of the Responses API for fields that an upstream of another dialect does not get, or has no limit for.

A native upstream checks them itself. Public documents: platform.openai.com/docs/api-reference/responses/create, and
openresponses.org/specification.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from svc.dialects.request_values import MAX_INTEGER, MAX_METADATA_KEY_CHARS, FunctionName, check_metadata, metadata_path
from svc.dialects.responses.request_schema import ResponsesBody
from svc.dialects.validation import convert_client_value
from svc.errors import InvalidRequest

MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_VALUE_CHARS: Final = 512
MAX_CACHE_KEY_CHARS: Final = 64
_SummaryMode = Literal["auto", "concise", "detailed"]
_IncludedValue = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class _LimitedFormat(msgspec.Struct):
    name: FunctionName | None = None


class _LimitedText(msgspec.Struct):
    format: _LimitedFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class _LimitedReasoning(msgspec.Struct):
    summary: _SummaryMode | None = None
    generate_summary: _SummaryMode | None = None


class _LimitedFields(msgspec.Struct):
    text: _LimitedText | None = None
    reasoning: _LimitedReasoning | None = None
    include: list[_IncludedValue] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=MAX_CACHE_KEY_CHARS)] | None = None


def check_limits(fields: dict[str, Any], body: ResponsesBody) -> None:
    """Check the values of a translated request. Raises InvalidRequest with the field."""
    convert_client_value(fields, _LimitedFields, "")
    check_metadata(body.metadata)
    metadata = body.metadata or {}
    if len(metadata) > MAX_METADATA_PAIRS:
        raise InvalidRequest(f"`metadata` has more than {MAX_METADATA_PAIRS} keys.", param="metadata")
    for name, value in metadata.items():
        path = metadata_path(name)
        if len(name) > MAX_METADATA_KEY_CHARS:
            raise InvalidRequest(f"`{path}`: a key has at most {MAX_METADATA_KEY_CHARS} characters.", param=path)
        if len(value) > MAX_METADATA_VALUE_CHARS:
            raise InvalidRequest(f"`{path}` has more than {MAX_METADATA_VALUE_CHARS} characters.", param=path)
