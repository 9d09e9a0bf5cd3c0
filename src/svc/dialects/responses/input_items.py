"""Input items of a Responses request as messages of the canonical chat.

Consecutive items of the assistant (reasoning, messages, calls) become one message, so that parallel calls stay
together. The output of a call follows the message with the call, which other APIs require.
"""

from __future__ import annotations

from typing import Any, Final

from svc.dialects.openai.documents import DATA_URL_PATTERN, FilePayload, decode_file
from svc.dialects.openai.response_codec import CUSTOM_INPUT_PREFIX, CUSTOM_INPUT_SUFFIX, escape_json_text
from svc.dialects.request_values import check_base64, check_link
from svc.dialects.responses.reasoning import decode_thinking
from svc.dialects.responses.tools import flatten_name
from svc.dialects.responses.translation_schema import InputItem, ItemPart, TypedItem
from svc.dialects.validation import convert_client_value
from svc.errors import InvalidRequest
from svc.wire.chat import (
    ChatMessage,
    ContentPart,
    DocumentPart,
    ImagePart,
    RefusalPart,
    Role,
    TextPart,
    ToolCall,
    ToolResult,
)

UNSUPPORTED_ITEM_SUFFIXES: Final = ("_call", "_output", "_approval_request", "_approval_response", "_list_tools")
"""Ends of the types of items that hosted tools leave behind. They are left out, and named in `x-svc-dropped`."""
_OTHER_UNSUPPORTED_ITEMS: Final = frozenset(
    (
        "additional_tools",
        "compaction",
        "compaction_summary",
        "compaction_trigger",
        "configuration_update",
        "program",
    )
)
_INPUT_PARTS: Final = (TextPart, ImagePart, DocumentPart)
_OUTPUT_PARTS: Final = (TextPart, RefusalPart)
"""Types of parts that a message of the assistant can have."""


_DECODED_ITEMS: Final = frozenset(
    ("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning")
)


class DecodedMessage:
    """A message, with the fields of the request that it comes from, for errors of upstreams' encoders."""

    def __init__(self, message: ChatMessage, paths: list[str]) -> None:
        self.message = message
        self.paths = paths
        """The path of each call's arguments in an assistant's message, and of the content in all others."""


class _Turn:
    """A message, and the outputs of its calls."""

    __slots__ = ("decoded", "results")

    def __init__(self, decoded: DecodedMessage) -> None:
        self.decoded = decoded
        self.results: list[DecodedMessage] = []


class InputDecoder:
    """Collects the messages of one request."""

    def __init__(self) -> None:
        self.dropped: list[str] = []
        """Paths of items that no other dialect has."""
        self._turns: list[_Turn] = []
        self._uncalled: list[tuple[InputItem, str, DecodedMessage]] = []
        """Outputs before their calls, with their items and paths."""
        self._dropped_calls: set[str] = set()
        """Ids of calls of hosted tools, whose outputs are left out too."""
        self._turns_by_call: dict[str, _Turn] = {}

    def messages(self) -> list[DecodedMessage]:
        """Return the messages so far."""
        return [decoded for turn in self._turns for decoded in (turn.decoded, *turn.results)]

    def add_instructions(self, text: str) -> None:
        """Add `instructions`, a system message."""
        self._add_message("system", [TextPart(text)], "instructions")

    def add_input(self, items: str | list[dict[str, Any]], *, earlier_items: int = 0) -> None:
        """Add `input`. Raises InvalidRequest with the field.

        `earlier_items`: the number of items at the start that come from `previous_response_id`.
        """
        if isinstance(items, str):
            self._add_message("user", [TextPart(items)], "input")
            return
        for index, value in enumerate(items):
            is_earlier = index < earlier_items
            self._add_item(value, "previous_response_id" if is_earlier else f"input[{index - earlier_items}]")
        for item, path, result in self._uncalled:
            self._add_uncalled(item, path, result)

    def _add_uncalled(self, item: InputItem, path: str, result: DecodedMessage) -> None:
        """Add an output that preceded its call. Raises InvalidRequest if there is none."""
        if item.call_id in self._dropped_calls:
            self.dropped.append(f"input[].{item.type}")
            return
        turn = self._turns_by_call.get(item.call_id or "")
        if turn is None:
            raise InvalidRequest(f"`{path}.call_id` is not the id of a call in `input`.", param=f"{path}.call_id")
        turn.results.append(result)

    def _add_item(self, value: dict[str, Any], path: str) -> None:
        typed: TypedItem = convert_client_value(value, TypedItem, path)
        item_type = typed.type or ("message" if typed.role else "")
        if item_type in _DECODED_ITEMS:
            self._add_decoded(item_type, convert_client_value(value, InputItem, path), path)
        elif item_type == "item_reference":
            if not typed.id:
                raise InvalidRequest(f"`{path}.id` is required.", param=f"{path}.id")
            raise InvalidRequest(
                "Items of earlier responses are not kept: send the item itself, as clients do with `store: false`, "
                "or set `store = true` in the table [responses] of the gateway's configuration.",
                param=f"{path}.type",
            )
        elif not item_type:
            raise InvalidRequest(f"`{path}.type` is required.", param=f"{path}.type")
        elif item_type.endswith(UNSUPPORTED_ITEM_SUFFIXES) or item_type in _OTHER_UNSUPPORTED_ITEMS:
            self.dropped.append(f"input[].{item_type}")
            if item_type.endswith("_call"):
                self._dropped_calls.update(name for name in (typed.call_id, typed.id) if name)
        else:
            raise InvalidRequest(f"There is no input item of the type `{item_type[:50]}`.", param=f"{path}.type")

    def _add_decoded(self, item_type: str, item: InputItem, path: str) -> None:
        match item_type:
            case "message":
                self._add_message_item(item, path)
            case "function_call":
                self._add_call(item, _require(item.arguments, path, "arguments"), path, "arguments")
            case "custom_tool_call":
                text = escape_json_text(_require(item.input, path, "input"))
                self._add_call(item, CUSTOM_INPUT_PREFIX + text + CUSTOM_INPUT_SUFFIX, path, "input")
            case "function_call_output" | "custom_tool_call_output":
                self._add_output(item, path)
            case "reasoning":
                part = decode_thinking(item.encrypted_content or "")
                if part is not None:
                    self._add_to_assistant(part)

    def _add_message_item(self, item: InputItem, path: str) -> None:
        role, content = item.role, item.content
        if role is None:
            raise InvalidRequest(f"`{path}.role` is required.", param=f"{path}.role")
        if content is None:
            raise InvalidRequest(f"`{path}.content` is required.", param=f"{path}.content")
        if role == "assistant":
            for part in _decode_content(content, f"{path}.content", _OUTPUT_PARTS):
                self._add_to_assistant(part)
        else:
            parts = _decode_content(content, f"{path}.content", _INPUT_PARTS)
            self._add_message("system" if role == "developer" else role, parts, f"{path}.content")

    def _add_message(self, role: Role, parts: list[ContentPart], path: str) -> None:
        """Add a message. System messages at the start are joined: many chat templates accept only one."""
        last = self._turns[-1].decoded.message if self._turns else None
        if role == "system" and last is not None and last.role == "system" and len(self._turns) == 1:
            first, second = _only_text(last.parts), _only_text(parts)
            if first is not None and second is not None:
                last.parts = [TextPart(f"{first}\n\n{second}")]
                return
        self._turns.append(_Turn(DecodedMessage(ChatMessage(role, parts), [path])))

    def _add_to_assistant(self, part: ContentPart) -> _Turn:
        """Add a part to the assistant's message at the end, or begin one. A turn with outputs is complete."""
        if not self._turns or self._turns[-1].decoded.message.role != "assistant" or self._turns[-1].results:
            self._turns.append(_Turn(DecodedMessage(ChatMessage("assistant", []), [])))
        turn = self._turns[-1]
        turn.decoded.message.parts.append(part)
        return turn

    def _add_call(self, item: InputItem, arguments: str, path: str, text_field: str) -> None:
        call_id, name = _require(item.call_id, path, "call_id"), _require(item.name, path, "name")
        turn = self._add_to_assistant(ToolCall(call_id, flatten_name(name, item.namespace), arguments))
        turn.decoded.paths.append(f"{path}.{text_field}")
        self._turns_by_call[call_id] = turn

    def _add_output(self, item: InputItem, path: str) -> None:
        call_id, output = _require(item.call_id, path, "call_id"), item.output
        if output is None:
            raise InvalidRequest(f"`{path}.output` is required.", param=f"{path}.output")
        parts = _decode_content(output, f"{path}.output", _INPUT_PARTS)
        content = [part for part in parts if isinstance(part, TextPart | ImagePart | DocumentPart)]
        result = DecodedMessage(ChatMessage("tool", [ToolResult(call_id, content)]), [f"{path}.output"])
        turn = self._turns_by_call.get(call_id)
        if turn is not None:
            turn.results.append(result)
        else:
            self._uncalled.append((item, path, result))


def _only_text(parts: list[ContentPart]) -> str | None:
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "\n".join(texts) if len(texts) == len(parts) else None


def _require(value: str | None, path: str, name: str) -> str:
    if not value and (value is None or name in ("call_id", "name")):
        raise InvalidRequest(f"`{path}.{name}` is required.", param=f"{path}.{name}")
    return value


def _decode_content(
    content: str | list[ItemPart], path: str, part_types: tuple[type[ContentPart], ...]
) -> list[ContentPart]:
    """Decode content that can have parts of some types. Raises InvalidRequest for others."""
    if isinstance(content, str):
        return [TextPart(content)]
    parts = []
    for index, encoded in enumerate(content):
        part = _decode_part(encoded, f"{path}[{index}]")
        if not isinstance(part, part_types):
            message = f"`{path}[{index}].type`: content of the type `{encoded.type}` is not possible here."
            raise InvalidRequest(message, param=f"{path}[{index}].type")
        parts.append(part)
    return parts


def _decode_part(part: ItemPart, path: str) -> ContentPart:
    match part.type:
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return TextPart(_require(part.text, path, "text"))
        case "refusal":
            return RefusalPart(_require(part.refusal, path, "refusal"))
        case "input_image":
            return _decode_image(part, path)
        case "input_file":
            return _decode_file(part, path)
    message = f"The provider of this model does not support content of the type `{part.type[:50]}`."
    raise InvalidRequest(message, param=f"{path}.type")


def _decode_image(part: ItemPart, path: str) -> ImagePart:
    url = part.image_url
    if url is None:
        name = "image_url" if part.file_id is None else "file_id"
        message = "The provider of this model needs an image in `image_url`, not the id of a file."
        raise InvalidRequest(message, param=f"{path}.{name}")
    if url.startswith(("https://", "http://")):
        return ImagePart(url=url, detail=part.detail)
    match = DATA_URL_PATTERN.fullmatch(url)
    if match is None:
        raise InvalidRequest("An image must be an http(s) link or a data URL in base64.", param=f"{path}.image_url")
    data = check_base64(match.group(2), f"{path}.image_url")
    return ImagePart(media_type=match.group(1).lower(), data=data, detail=part.detail)


def _decode_file(part: ItemPart, path: str) -> DocumentPart:
    if part.file_url is None:
        return decode_file(FilePayload(part.file_data, part.file_id, part.filename), None, path)
    link_path = f"{path}.file_url"
    return DocumentPart(url=check_link(part.file_url, link_path), title=part.filename, path=link_path)
