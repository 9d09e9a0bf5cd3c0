"""OpenAI speech: decodes the routing information of a request.

https://platform.openai.com/docs/api-reference/audio/createSpeech
"""

from __future__ import annotations

from typing import Final

from svc.dialects.base import RequestBody
from svc.dialects.fields_decoder import FieldsDecoder
from svc.dialects.routing_info import RoutingInfo
from svc.errors import InvalidRequest
from svc.wire.synthesis import MAX_SPEECH_INPUT_CHARS, SpeechRequest

MAX_SPEECH_BODY_BYTES: Final = 1024 * 1024
"""Maximum bytes of a request. 4,096 characters take 48 KiB at most."""
_REQUEST_DECODER: Final = FieldsDecoder(SpeechRequest)


def decode_routing_info(body: RequestBody) -> RoutingInfo:
    """Decode the routing information, and set the body's skeleton. Raises InvalidRequest with the field."""
    if len(body.raw) > MAX_SPEECH_BODY_BYTES:
        raise InvalidRequest(
            f"The body is too large: `input` can have {MAX_SPEECH_INPUT_CHARS} characters.", param="input"
        )
    fields = _REQUEST_DECODER.decode_body(body)
    if body.skeleton is not body.raw:  # a skeleton has no long texts, whose lengths are limited
        fields = _REQUEST_DECODER.decode_complete_body(body.raw)
    if not fields.input.strip():
        raise InvalidRequest("`input` has no text.", param="input")
    return RoutingInfo(
        model=fields.model,
        stream=True,
        has_completion=False,
        has_single_prompt=False,
        spoken_characters=len(fields.input),
    )
