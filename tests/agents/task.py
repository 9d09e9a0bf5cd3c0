"""The task of a coding agent: a folder with a file to correct and a command to run, and the steps that solve it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Step = Literal["read", "edit", "run", "answer"]
STEPS: tuple[Step, ...] = ("read", "edit", "run")

FILE, SCRIPT, PROOF = "greeting.txt", "check.sh", "checked.txt"
WRONG, RIGHT = "Hello, wrold!", "Hello, world!"
COMMAND = f"sh {SCRIPT}"
PROMPT = f"Correct the spelling mistake in {FILE}, then run `{COMMAND}` and tell me whether it succeeded."
ANSWER = "The spelling mistake is corrected, and the check has succeeded."


def prepare(folder: Path) -> None:
    """Write the files of the task."""
    (folder / FILE).write_text(f"{WRONG}\n", encoding="utf-8")
    (folder / SCRIPT).write_text(
        f'grep -q "{RIGHT}" {FILE} && echo passed > {PROOF} && echo passed\n', encoding="utf-8"
    )


def missing(folder: Path) -> str:
    """Return what the agent has not done, or an empty string."""
    if (folder / FILE).read_text(encoding="utf-8").strip() != RIGHT:
        return "the file is not changed"
    return "" if (folder / PROOF).exists() else "the command has not run"


@dataclass(frozen=True)
class Tool:
    """A tool that the request offers. `custom` takes text instead of arguments, `namespace` is that of Responses."""

    name: str
    schema: dict[str, Any]
    custom: bool = False
    namespace: str = ""


@dataclass(frozen=True)
class Call:
    """A tool call. `arguments` is text for a custom tool."""

    id: str
    tool: Tool
    arguments: dict[str, Any] | str


READ = re.compile(r"^(read|read_?files?|view|cat|open_file)$", re.I)
SHELL = re.compile(
    r"^(bash|shell|shell_command|exec_command|run_shell_command|run_terminal_command|execute_command|run_commands?)$",
    re.I,
)
PATCH = f"*** Begin Patch\n*** Update File: {FILE}\n@@\n-{WRONG}\n+{RIGHT}\n*** End Patch\n"
DEFAULTS: dict[str, Any] = {
    "string": "as the task says",
    "boolean": False,
    "integer": 1,
    "number": 1,
    "object": {},
    "array": [],
}


def next_step(answered: set[str]) -> Step:
    """Return the first step without a tool result. The ids of results say to which step they belong."""
    return next((step for step in STEPS if not any(f"_{step}_" in one for one in answered)), "answer")


def calls_for(step: Step, tools: list[Tool], folder: Path, *, parallel: bool) -> list[Call]:
    """Return the tool calls of a step, with the agent's own tools."""
    if step == "read":
        names = [FILE, SCRIPT] if parallel else [FILE]
        return [Call(f"call_read_{at}", *_read(tools, folder / name)) for at, name in enumerate(names)]
    if step == "edit":
        return [Call("call_edit_0", *_edit(tools, folder / FILE))]
    return [Call("call_run_0", *_shell(tools, COMMAND))]


def _read(tools: list[Tool], path: Path) -> tuple[Tool, dict[str, Any] | str]:
    found = next((tool for tool in tools if READ.match(tool.name)), None)
    return (found, fill(found.schema, {"path": str(path)})) if found else _shell(tools, f"cat {path.name}")


def _edit(tools: list[Tool], path: Path) -> tuple[Tool, dict[str, Any] | str]:
    for tool in tools:
        if tool.name == "apply_patch":
            return tool, PATCH if tool.custom else dict.fromkeys(tool.schema["properties"], PATCH)
    for tool in tools:
        arguments = fill(tool.schema, {"path": str(path), "old": WRONG, "new": RIGHT})
        if {WRONG, RIGHT} <= set(_leaves(arguments)):
            return tool, arguments
    return _shell(tools, f"sed -i 's/wrold/world/' {path.name}")


def _shell(tools: list[Tool], command: str) -> tuple[Tool, dict[str, Any] | str]:
    found = next((tool for tool in tools if SHELL.match(tool.name)), None)
    if found is None:
        raise LookupError(f"no tool runs commands: {', '.join(tool.name for tool in tools)}")
    return found, command if found.custom else fill(found.schema, {"command": command})


ALIASES = {
    **dict.fromkeys(
        ("path", "filepath", "absolutepath", "targetfile", "filename", "file", "files", "filepaths"), "path"
    ),
    **dict.fromkeys(("old", "oldstring", "oldtext", "oldstr", "search"), "old"),
    **dict.fromkeys(("new", "newstring", "newtext", "newstr", "replace"), "new"),
    **dict.fromkeys(("command", "cmd", "commands"), "command"),
}


def fill(schema: dict[str, Any], values: dict[str, str]) -> dict[str, Any]:
    """Return arguments for the schema: the given values in the properties with such names, and what is required."""
    properties: dict[str, Any] = schema.get("properties", {})
    named = {name: part for name, part in properties.items() if _alias(name) in values}
    if "edits" in properties and not any(_alias(name) == "old" for name in named):
        named["edits"] = properties["edits"]
    required = {name: properties.get(name, {}) for name in schema.get("required", ())}
    return {name: _value(name, part, values) for name, part in {**required, **named}.items()}


def _value(name: str, schema: dict[str, Any], values: dict[str, str]) -> Any:
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return _value(name, schema[choice][0], values)
    kind = schema.get("type", "string")
    kind = next(one for one in kind if one != "null") if isinstance(kind, list) else kind
    if kind == "array" and (name == "edits" or _alias(name) in values):
        items = schema.get("items", {})
        one = fill(items, values) if items.get("type") == "object" else values[_alias(name)]
        return ["bash", "-lc", one] if name == "command" else [one]
    if _alias(name) in values and kind == "string":
        return values[_alias(name)]
    return schema["enum"][0] if "enum" in schema else DEFAULTS[kind]


def _alias(name: str) -> str:
    return ALIASES.get(name.lower().replace("_", ""), "")


def _leaves(value: Any) -> list[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if parts is None else [leaf for part in parts for leaf in _leaves(part)]
