"""Encodes requests of OpenAI's Responses API and decodes responses and streams. No sockets.

Events and objects: https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from svc.client.event_stream import SdkEventStream
from svc.client.http_session import HttpSession, error_from_code
from svc.client.request_fields import encode_request_body, select_fields, to_items
from svc.client.tool_calls import ChatToolCall, ChatToolCallDelta, ToolCallAssembler
from svc.client.transport import ClientResponse
from svc.errors import GatewayFailed, ProviderFailed, SvcError
from svc.wire.sse import event_data

ResponseInput = str | Sequence[Mapping[str, Any]]
RESPONSES_PATH = "/responses"
ENDING_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
ITEM_STARTS_TOOL_CALL = {"function_call": "arguments", "custom_tool_call": "input"}
"""The item types of tool calls, and the field with what the model wrote."""
RESPONSE_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, KeyError, AttributeError)


class ResponseUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class ResponseResult(msgspec.Struct, frozen=True):
    """A response. `raw` is the JSON of the server, and `output` its items.

    `status` is `completed` or `incomplete`. A request in the background has another one until it is completed.
    `incomplete_reason` is `max_output_tokens` or `content_filter`.
    """

    id: str
    status: str
    text: str
    usage: ResponseUsage | None
    raw: dict[str, Any]
    model: str = ""
    tool_calls: tuple[ChatToolCall, ...] = ()
    reasoning: str = ""
    incomplete_reason: str | None = None
    request_id: str | None = None

    @property
    def output(self) -> list[dict[str, Any]]:
        """Return the items, for the input of the next request."""
        items: list[dict[str, Any]] = self.raw["output"]
        return items


class ResponseStreamEvent(msgspec.Struct, frozen=True):
    """An event of a stream. `raw` is its JSON. `text`, `reasoning` and `tool_call` are what the event adds."""

    type: str
    raw: dict[str, Any]
    text: str = ""
    reasoning: str = ""
    tool_call: ChatToolCallDelta | None = None


def build_responses_request(
    model: str, items: ResponseInput, parameters: Mapping[str, Any], *, stream: bool
) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of a request. Raises InvalidRequest if it cannot be encoded."""
    fields = select_fields(parameters)
    body = {"model": model, "input": items if isinstance(items, str) else to_items(items, "input"), **fields}
    return encode_request_body({**body, "stream": True} if stream else body), {
        "content-type": "application/json",
        "accept": "text/event-stream" if stream else "application/json",
    }


def decode_response_result(body: bytes, request_id: str | None) -> ResponseResult:
    """Decode a complete response.

    Raises GatewayFailed if it is not a response of this API, and the error of a response that failed.
    """
    try:
        raw = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_a_response() from error
    return _to_result(raw, request_id)


def _to_result(raw: dict[str, Any], request_id: str | None) -> ResponseResult:
    if raw.get("object") != "response":
        raise _not_a_response()
    if raw.get("status") == "failed":
        raise _to_error(raw.get("error"), request_id)
    try:
        return ResponseResult(
            id=str(raw["id"]),
            status=str(raw.get("status") or "completed"),
            text="".join(_texts(raw["output"], "message", "content")),
            usage=_to_usage(raw.get("usage")),
            raw=raw,
            model=str(raw.get("model") or ""),
            tool_calls=tuple(_to_tool_call(item) for item in raw["output"] if item["type"] in ITEM_STARTS_TOOL_CALL),
            reasoning="".join(
                _texts(raw["output"], "reasoning", "content") or _texts(raw["output"], "reasoning", "summary")
            ),
            incomplete_reason=(raw.get("incomplete_details") or {}).get("reason"),
            request_id=request_id,
        )
    except RESPONSE_DECODE_ERRORS as error:
        raise _not_a_response() from error


def _texts(items: list[dict[str, Any]], item_type: str, field: str) -> list[str]:
    parts = [part for item in items if item["type"] == item_type for part in item.get(field) or []]
    return [str(part.get("text") or part.get("refusal") or "") for part in parts]


def _to_tool_call(item: dict[str, Any]) -> ChatToolCall:
    """Return the call. The free text of a custom tool is an object with the field `input`."""
    text = str(item[ITEM_STARTS_TOOL_CALL[item["type"]]])
    if item["type"] == "custom_tool_call":
        text = msgspec.json.encode({"input": text}).decode()
    return ChatToolCall(str(item["call_id"]), str(item["name"]), text)


def _to_usage(usage: Any) -> ResponseUsage | None:
    if not isinstance(usage, dict):
        return None
    details = {**(usage.get("input_tokens_details") or {}), **(usage.get("output_tokens_details") or {})}
    return msgspec.convert({**usage, **details}, ResponseUsage, strict=False)


def _to_error(error: Any, request_id: str | None) -> SvcError:
    fields = error if isinstance(error, dict) else {}
    code, message = fields.get("code"), fields.get("message")
    failure = error_from_code(code if isinstance(code, str) else None, str(message or "The response failed."), 502)
    if isinstance(failure, GatewayFailed):  # an unknown code: the server responded, and the model failed
        failure = ProviderFailed(failure.message)
    failure.request_id = request_id
    return failure


def _not_a_response() -> GatewayFailed:
    return GatewayFailed("The response is not one of the Responses API. Check that the address is a gateway's.")


class ResponseEventStream(SdkEventStream[ResponseStreamEvent]):
    """A streamed response. `next` returns its events."""

    def __init__(self, session: HttpSession, response: ClientResponse) -> None:
        super().__init__(session, response)
        self._tool_calls = ToolCallAssembler()
        self._call_indexes: dict[Any, int] = {}
        self._received_result: ResponseResult | None = None
        self.result: ResponseResult | None = None
        """The response, once its last event was returned."""

    async def next(self) -> ResponseStreamEvent | None:
        event = await super().next()
        if not self._items:
            self.result = self._received_result
        return event

    @property
    def _is_last_event_read(self) -> bool:
        return self._received_result is not None

    @property
    def _has_result(self) -> bool:
        return self._received_result is not None

    def _handle_event(self, event: bytes) -> None:
        payload = event_data(event)
        if self._received_result is not None or payload is None or payload.strip() == b"[DONE]":
            return
        try:
            raw = msgspec.json.decode(payload, type=dict[str, Any])
            kind = str(raw["type"])
            if kind in ENDING_EVENTS:
                self._handle_end(kind, raw)
            self._items.append(self._to_event(kind, raw))
        except RESPONSE_DECODE_ERRORS as error:
            raise ProviderFailed("The server sent an event that is not one of the Responses API.") from error

    def _handle_end(self, kind: str, raw: dict[str, Any]) -> None:
        if kind == "error":
            nested = raw.get("error")
            raise _to_error(nested if isinstance(nested, dict) else raw, self.request_id)
        if kind == "response.failed":
            raise _to_error(raw["response"].get("error"), self.request_id)
        self._received_result = _to_result(raw["response"], self.request_id)

    def _to_event(self, kind: str, raw: dict[str, Any]) -> ResponseStreamEvent:
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                return ResponseStreamEvent(kind, raw, text=_delta_text(raw))
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                return ResponseStreamEvent(kind, raw, reasoning=_delta_text(raw))
            case "response.output_item.added" if raw["item"]["type"] in ITEM_STARTS_TOOL_CALL:
                index = self._call_indexes.setdefault(raw["output_index"], len(self._call_indexes))
                item = raw["item"]
                return ResponseStreamEvent(
                    kind, raw, tool_call=self._tool_calls.start(index, item["call_id"], item["name"])
                )
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                index = self._call_indexes[raw["output_index"]]
                return ResponseStreamEvent(kind, raw, tool_call=self._tool_calls.append(index, _delta_text(raw)))
        return ResponseStreamEvent(kind, raw)


def _delta_text(raw: dict[str, Any]) -> str:
    """Return the text of a delta. Raises TypeError for another value."""
    delta = raw["delta"]
    if not isinstance(delta, str):
        raise TypeError
    return delta
