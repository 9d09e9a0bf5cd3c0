"""Parses the upload form of OpenAI's `POST /v1/audio/transcriptions`. Rejects options that are not supported.

https://platform.openai.com/docs/api-reference/audio/createTranscription
"""

from __future__ import annotations

import msgspec
from starlette.datastructures import FormData, UploadFile

from svc.errors import InvalidRequest
from svc.speech.transcript_formats import TRANSCRIPT_FORMATS
from svc.wire.speech import MAX_CONFIG_STRING_CHARS, ConfigMessage

STREAMABLE_RESPONSE_FORMATS = ("json", "text")
"""Response formats that can be streamed."""
SPEAKER_FIELDS = ("known_speaker_names", "known_speaker_references")
TIMESTAMP_GRANULARITIES = ("segment", "word")


class TranscriptionRequest(msgspec.Struct, frozen=True):
    """The fields of the form."""

    file: UploadFile
    config: ConfigMessage
    response_format: str
    stream: bool
    granularities: tuple[str, ...] = ("segment",)
    """The parts of `verbose_json` that have times: `segment`, `word` or both."""
    dropped_fields: tuple[str, ...] = ()
    """Fields that no model uses. They are hints, so the transcript is valid without them."""


def parse_upload_form(form: FormData) -> TranscriptionRequest:
    """Parse the form. Raises InvalidRequest that names the field."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise InvalidRequest("The form (multipart/form-data) has no 'file'.", param="file")
    response_format = _text_field(form, "response_format") or "json"
    if response_format not in TRANSCRIPT_FORMATS:
        raise InvalidRequest(
            f"'response_format' must be one of {', '.join(TRANSCRIPT_FORMATS)}.", param="response_format"
        )
    stream = _boolean_field(form, "stream")
    if stream and response_format not in STREAMABLE_RESPONSE_FORMATS:
        raise InvalidRequest(
            f"'stream' requires a 'response_format' of {' or '.join(STREAMABLE_RESPONSE_FORMATS)}.", param="stream"
        )
    granularities = _parse_granularities(form, response_format)
    if _list_field(form, "include"):
        raise InvalidRequest("'include' is not supported: no model returns 'logprobs'.", param="include")
    for name in SPEAKER_FIELDS:
        if _list_field(form, name):
            raise InvalidRequest(f"'{name}' is not supported: no model tells speakers apart.", param=name)
    return TranscriptionRequest(
        file,
        ConfigMessage(model=_text_field(form, "model"), language=_text_field(form, "language")),
        response_format,
        stream,
        granularities,
        _find_ignored_hints(form),
    )


def _find_ignored_hints(form: FormData) -> tuple[str, ...]:
    """Return the hints in the form that have an effect with other servers. Raises InvalidRequest for a wrong value."""
    temperature = _text_field(form, "temperature")
    try:
        is_default = temperature is None or float(temperature) == 0
        is_valid = temperature is None or 0 <= float(temperature) <= 1
    except ValueError:
        is_default = is_valid = False
    if not is_valid:
        raise InvalidRequest("'temperature' must be a number from 0 to 1.", param="temperature")
    hints = [name for name in ("prompt", "chunking_strategy") if form.get(name) not in (None, "", "auto")]
    return (*hints, *(() if is_default else ("temperature",)))


def _parse_granularities(form: FormData, response_format: str) -> tuple[str, ...]:
    values = _list_field(form, "timestamp_granularities")
    for value in values:
        if value not in TIMESTAMP_GRANULARITIES:
            allowed = " or ".join(TIMESTAMP_GRANULARITIES)
            raise InvalidRequest(f"A timestamp granularity must be {allowed}.", param="timestamp_granularities")
        if value == "word" and response_format != "verbose_json":
            raise InvalidRequest(
                "Word timestamps require the 'response_format' verbose_json.", param="timestamp_granularities"
            )
    return tuple(values) or ("segment",)


def _list_field(form: FormData, name: str) -> list[str]:
    """Return the values of a list field, which OpenAI's clients send as `name[]`."""
    values = [*form.getlist(name), *form.getlist(f"{name}[]")]
    return [value if isinstance(value, str) else "" for value in values if value != ""]


def _boolean_field(form: FormData, name: str) -> bool:
    value = (_text_field(form, name) or "false").lower()
    if value not in ("true", "1", "false", "0"):
        raise InvalidRequest(f"{name!r} must be true or false.", param=name)
    return value in ("true", "1")


def _text_field(form: FormData, name: str) -> str | None:
    value = form.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > MAX_CONFIG_STRING_CHARS:
        raise InvalidRequest(f"{name!r} must be a text of at most {MAX_CONFIG_STRING_CHARS} characters.", param=name)
    return value
