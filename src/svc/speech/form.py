"""The upload form of OpenAI's `POST /v1/audio/transcriptions`, checked. Nothing that cannot be done is ignored.

https://platform.openai.com/docs/api-reference/audio/createTranscription
"""

from __future__ import annotations

import msgspec
from starlette.datastructures import FormData, UploadFile

from svc.errors import InvalidRequest
from svc.speech.transcripts import SHAPES
from svc.wire.speech import MAX_NAME, Config

STREAMED = ("json", "text")
"""Response formats that go with `stream`."""
GRANULARITIES = ("segment", "word")


class Wanted(msgspec.Struct, frozen=True):
    """The fields of the form."""

    file: UploadFile
    config: Config
    shape: str
    stream: bool


def wanted_of(form: FormData) -> Wanted:
    """Raises InvalidRequest that names the field."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise InvalidRequest("There is no 'file' in the form (multipart/form-data).", param="file")
    shape = _text(form, "response_format") or "json"
    if shape not in SHAPES:
        raise InvalidRequest(f"'response_format' is not one of {', '.join(SHAPES)}.", param="response_format")
    stream = _boolean(form, "stream")
    if stream and shape not in STREAMED:
        raise InvalidRequest(f"'stream' goes with a 'response_format' of {' or '.join(STREAMED)}.", param="stream")
    _check_granularities(form)
    if _values(form, "include"):
        raise InvalidRequest("No model here gives 'logprobs', so 'include' cannot be answered.", param="include")
    return Wanted(file, Config(model=_text(form, "model"), language=_text(form, "language")), shape, stream)


def _check_granularities(form: FormData) -> None:
    for value in _values(form, "timestamp_granularities"):
        if value not in GRANULARITIES:
            allowed = " or ".join(GRANULARITIES)
            raise InvalidRequest(f"A timestamp granularity is {allowed}.", param="timestamp_granularities")
        if value == "word":
            raise InvalidRequest(
                "No model here gives the times of words; ask for 'segment'.", param="timestamp_granularities"
            )


def _values(form: FormData, name: str) -> list[str]:
    """The values of a list, which OpenAI's clients send as `name[]`."""
    values = [*form.getlist(name), *form.getlist(f"{name}[]")]
    return [value if isinstance(value, str) else "" for value in values if value != ""]


def _boolean(form: FormData, name: str) -> bool:
    value = (_text(form, name) or "false").lower()
    if value not in ("true", "1", "false", "0"):
        raise InvalidRequest(f"{name!r} is true or false.", param=name)
    return value in ("true", "1")


def _text(form: FormData, name: str) -> str | None:
    value = form.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise InvalidRequest(f"{name!r} is not a short text.", param=name)
    return value
