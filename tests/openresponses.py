"""Validates responses and events with the models of the OpenResponses specification."""

from __future__ import annotations

import json
from typing import Any, Final

import openresponses_types as models
import pydantic

_EVENT_MODELS: Final[dict[str, type[pydantic.BaseModel]]] = {
    next(iter(model.model_fields["type"].annotation)).value: model  # type: ignore[arg-type]
    for name, model in vars(models).items()
    if name.endswith("StreamingEvent")
}
"""Models of events by their types."""
_ENDS: Final = frozenset(("response.completed", "response.incomplete", "response.failed"))


def validate_response(response: dict[str, Any]) -> models.ResponseResource:
    """Return the response as a model. Raises ValidationError."""
    return models.ResponseResource.model_validate(response)


def read_events(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream. Its names and numbers have to be right, and its last event has to end it."""
    blocks = body.decode().split("\n\n")
    assert blocks.pop() == "", "the stream ends within an event"
    events = []
    for block in blocks:
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events if event["type"] in _ENDS] == [events[-1]["type"]]
    return events


def validate_events(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream. Also raises ValidationError for an event that differs from the specification."""
    events = read_events(body)
    for event in events:
        _EVENT_MODELS[event["type"]].model_validate(event)
    return events
