"""Tools of a Responses request as functions of the canonical chat, and their names back.

    function                                 the same function
    custom                                   a function with one string parameter, `input`
    namespace, with functions inside         functions with the names of both, and `__` between them
    any other type, such as web_search       left out: the upstream does not run it

Public documents: platform.openai.com/docs/guides/function-calling, and openresponses.org/specification.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from svc.dialects.responses.translation_schema import (
    CustomTool,
    FunctionTool,
    NamedToolChoice,
    NamespaceTool,
    TypedTool,
)
from svc.dialects.tool_names import shorten_tool_name
from svc.dialects.validation import convert_client_value
from svc.errors import InvalidRequest
from svc.wire.chat import ToolChoice, ToolDefinition

NAMESPACE_SEPARATOR: Final = "__"
CUSTOM_TOOL_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_CHOICE_MODES: Final[Any] = Literal["auto", "none", "required"]


class ToolName:
    """The name of a tool as the client knows it. Immutable."""

    def __init__(self, name: str, namespace: str | None = None, *, is_custom: bool = False) -> None:
        self.name: Final = name
        self.namespace: Final = namespace
        self.is_custom: Final = is_custom


class ToolSet:
    """The tools of a request."""

    def __init__(self) -> None:
        self.definitions: list[ToolDefinition] = []
        self.names: dict[str, ToolName] = {}
        """The client's names by the names that the upstream gets."""
        self.available: list[dict[str, Any]] = []
        """The client's tools without those that were left out, as the response repeats them."""
        self.dropped: list[str] = []
        """Paths of tools that were left out, such as `tools[].web_search`."""

    def client_name(self, flat_name: str) -> ToolName:
        """Return the client's name of a tool that the upstream calls."""
        return self.names.get(flat_name) or ToolName(flat_name)


def flatten_name(name: str, namespace: str | None) -> str:
    """Return the function name for the upstream. A long name ends in a digest, so that it stays unique."""
    flat = f"{namespace.removesuffix(NAMESPACE_SEPARATOR)}{NAMESPACE_SEPARATOR}{name}" if namespace else name
    return shorten_tool_name(flat) if namespace else flat


def decode_tools(tools: list[dict[str, Any]]) -> ToolSet:
    """Decode `tools`. Raises InvalidRequest with the field."""
    tool_set = ToolSet()
    for index, tool in enumerate(tools):
        available = _add_tool(tool_set, tool, None, f"tools[{index}]")
        if available is not None:
            tool_set.available.append(available)
    return tool_set


def _add_tool(tool_set: ToolSet, tool: dict[str, Any], namespace: str | None, path: str) -> dict[str, Any] | None:
    """Add a tool to the set, and return it as the response repeats it. Returns None if it is left out."""
    tool_type = convert_client_value(tool, TypedTool, path).type
    if tool_type == "function":
        function = convert_client_value(tool, FunctionTool, path)
        _add_function(tool_set, function, ToolName(function.name, namespace), path)
        return {"description": None, "parameters": None, "strict": None, **tool}
    if tool_type == "custom":
        custom = convert_client_value(tool, CustomTool, path)
        function = FunctionTool(custom.name, _describe_custom(custom), CUSTOM_TOOL_PARAMETERS)
        _add_function(tool_set, function, ToolName(custom.name, namespace, is_custom=True), path)
        return tool
    if tool_type == "namespace" and namespace is None:
        group = convert_client_value(tool, NamespaceTool, path)
        members = [
            _add_tool(tool_set, member, group.name, f"{path}.tools[{number}]")
            for number, member in enumerate(group.tools)
        ]
        return {**tool, "tools": [member for member in members if member is not None]}
    tool_set.dropped.append(f"tools[].{tool_type}")
    return None


def _add_function(tool_set: ToolSet, function: FunctionTool, name: ToolName, path: str) -> None:
    flat = flatten_name(name.name, name.namespace)
    if flat in tool_set.names:
        raise InvalidRequest(f"`tools` has two tools with the name {flat[:64]!r}.", param=f"{path}.name")
    tool_set.names[flat] = name
    tool_set.definitions.append(ToolDefinition(flat, function.description, function.parameters, function.strict))


def _describe_custom(tool: CustomTool) -> str | None:
    """Return the description with the grammar that the input has to follow."""
    if tool.format is None or not tool.format.definition:
        return tool.description
    grammar = f"The input follows this grammar ({tool.format.syntax or tool.format.type}):\n{tool.format.definition}"
    return f"{tool.description}\n\n{grammar}" if tool.description else grammar


def decode_tool_choice(choice: str | dict[str, Any] | None, tool_set: ToolSet) -> ToolChoice | None:
    """Decode `tool_choice`, and remove the tools that it does not allow from the set.

    Raises InvalidRequest with the field, also if it demands a tool that was left out.
    """
    if choice is None:
        return None
    if isinstance(choice, str):
        mode = convert_client_value(choice, _CHOICE_MODES, "tool_choice")
        if mode == "required" and not tool_set.definitions:
            message = "`tool_choice` is `required`, but the provider of this model has none of the request's tools."
            raise InvalidRequest(message, param="tool_choice")
        return ToolChoice(mode)
    chosen = convert_client_value(choice, NamedToolChoice, "tool_choice")
    if chosen.type == "allowed_tools":
        return _restrict_tools(chosen, tool_set)
    if chosen.type not in ("function", "custom"):
        raise _unavailable_tool_error(chosen.type)
    return ToolChoice("tool", _find_chosen(chosen, tool_set, "tool_choice"))


def _restrict_tools(chosen: NamedToolChoice, tool_set: ToolSet) -> ToolChoice:
    allowed = set()
    for index, tool in enumerate(chosen.tools or []):
        path = f"tool_choice.tools[{index}]"
        entry = convert_client_value(tool, NamedToolChoice, path)
        if entry.type in ("function", "custom"):
            allowed.add(_find_chosen(entry, tool_set, path))
    if not allowed:
        raise _unavailable_tool_error("one of `tool_choice.tools`")
    tool_set.definitions = [tool for tool in tool_set.definitions if tool.name in allowed]
    return ToolChoice(chosen.mode or "auto")


def _find_chosen(chosen: NamedToolChoice, tool_set: ToolSet, path: str) -> str:
    if not chosen.name:
        raise InvalidRequest(f"`{path}.name` is required.", param=f"{path}.name")
    flat = flatten_name(chosen.name, chosen.namespace)
    if flat in tool_set.names:
        return flat
    matches = [known for known, name in tool_set.names.items() if name.name == chosen.name]
    if len(matches) != 1:
        raise InvalidRequest(f"`{path}` names {chosen.name[:64]!r}, which is not in `tools`.", param=f"{path}.name")
    return matches[0]


def _unavailable_tool_error(tool: str) -> InvalidRequest:
    message = f"`tool_choice` demands {tool[:64]}, which the provider of this model does not have."
    return InvalidRequest(message, param="tool_choice")
