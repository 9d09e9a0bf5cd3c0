"""The upload form of OpenAI's `POST /v1/audio/transcriptions`, checked. Nothing that cannot be done is ignored.

https://platform.openai.com/docs/api-reference/audio/createTranscription
"""

from __future__ import annotations

import msgspec
from starlette.datastructures import FormData, UploadFile

from svc.errors import InvalidRequest
from svc.speech.transcript_formats import TRANSCRIPT_FORMATS
from svc.wire.speech import MAX_CONFIG_STRING_CHARS, ConfigMessage

STREAMABLE_RESPONSE_FORMATS = ("json", "text")
"""Response formats that go with `stream`."""
TIMESTAMP_GRANULARITIES = ("segment", "word")


class TranscriptionRequest(msgspec.Struct, frozen=True):
    """The fields of the form."""

    file: UploadFile
    config: ConfigMessage
    response_format: str
    stream: bool


def parse_upload_form(form: FormData) -> TranscriptionRequest:
    """Raises InvalidRequest that names the field."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise InvalidRequest("There is no 'file' in the form (multipart/form-data).", param="file")
    response_format = _text_field(form, "response_format") or "json"
    if response_format not in TRANSCRIPT_FORMATS:
        raise InvalidRequest(
            f"'response_format' is not one of {', '.join(TRANSCRIPT_FORMATS)}.", param="response_format"
        )
    stream = _boolean_field(form, "stream")
    if stream and response_format not in STREAMABLE_RESPONSE_FORMATS:
        raise InvalidRequest(
            f"'stream' goes with a 'response_format' of {' or '.join(STREAMABLE_RESPONSE_FORMATS)}.", param="stream"
        )
    _check_granularities(form)
    if _list_field(form, "include"):
        raise InvalidRequest("No model here gives 'logprobs', so 'include' cannot be answered.", param="include")
    return TranscriptionRequest(
        file,
        ConfigMessage(model=_text_field(form, "model"), language=_text_field(form, "language")),
        response_format,
        stream,
    )


def _check_granularities(form: FormData) -> None:
    for value in _list_field(form, "timestamp_granularities"):
        if value not in TIMESTAMP_GRANULARITIES:
            allowed = " or ".join(TIMESTAMP_GRANULARITIES)
            raise InvalidRequest(f"A timestamp granularity is {allowed}.", param="timestamp_granularities")
        if value == "word":
            raise InvalidRequest(
                "No model here gives the times of words; ask for 'segment'.", param="timestamp_granularities"
            )


def _list_field(form: FormData, name: str) -> list[str]:
    """The values of a list, which OpenAI's clients send as `name[]`."""
    values = [*form.getlist(name), *form.getlist(f"{name}[]")]
    return [value if isinstance(value, str) else "" for value in values if value != ""]


def _boolean_field(form: FormData, name: str) -> bool:
    value = (_text_field(form, name) or "false").lower()
    if value not in ("true", "1", "false", "0"):
        raise InvalidRequest(f"{name!r} is true or false.", param=name)
    return value in ("true", "1")


def _text_field(form: FormData, name: str) -> str | None:
    value = form.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > MAX_CONFIG_STRING_CHARS:
        raise InvalidRequest(f"{name!r} is not a short text.", param=name)
    return value
