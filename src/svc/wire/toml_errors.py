"""Finds the line of a wrong value in the configuration file, and the values or keys that are allowed there. Pure."""

from __future__ import annotations

import re
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

_HEADER: Final = re.compile(r"\s*(\[{1,2})\s*([^\[\]]+?)\s*\]")
_KEY: Final = re.compile(r"""\s*["']?([^"'=\s#\[]+)["']?\s*=""")
UNKNOWN_KEY_PATTERN: Final = re.compile(r"unknown field `([^`]+)`")


def find_error_path(message: str) -> str:
    """Return the path in msgspec's error, such as `gateway.port` or `providers[1].name`, with the unknown key."""
    path = _path_of(message)
    unknown = UNKNOWN_KEY_PATTERN.search(message)
    return path if unknown is None else f"{path}.{unknown[1]}".removeprefix(".")


def find_path_line(text: str, path: str) -> int:
    """Return the number of the line of a value, from 1, or 0 if it is not found.

    Values in inline tables have the line of the table's key.
    """
    wanted = path
    table, found, counts, longest = "", 0, dict[str, int](), -1
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _name_table(header[2].replace('"', "").replace("'", ""), counts, is_entry=header[1] == "[[")
            path = table
        elif key := _KEY.match(line):
            path = f"{table}.{key[1]}".removeprefix(".")
        else:
            continue
        if len(path) > longest and (wanted == path or wanted.startswith((f"{path}.", f"{path}["))):
            found, longest = number, len(path)
    return found


def list_allowed_values(settings_type: type, message: str) -> str:
    """Return the values that are allowed at the path of msgspec's error, or an empty string."""
    options = _options(_type_at(settings_type, _path_of(message)))
    values = [value for option in options if get_origin(option) is Literal for value in get_args(option)]
    return ", ".join(map(repr, values))


def list_known_keys(settings_type: type, message: str) -> tuple[str, ...]:
    """Return the keys of the table at the path of msgspec's error, or an empty tuple."""
    for option in _options(_type_at(settings_type, _path_of(message))):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option.__struct_fields__
    return ()


def _path_of(message: str) -> str:
    return message.partition(" - at `$")[2].rstrip("`").removeprefix(".")


def _name_table(name: str, counts: dict[str, int], *, is_entry: bool) -> str:
    """Return the path of a table. `counts` has the last index of each array of tables."""
    first, _, rest = name.partition(".")
    path = f"{first}[{counts[first]}].{rest}" if rest and first in counts else name
    if not is_entry:
        return path
    counts[path] = counts.get(path, -1) + 1
    return f"{path}[{counts[path]}]"


def _type_at(settings_type: type, path: str) -> Any:
    found: Any = settings_type
    for name in filter(None, re.split(r"[.\[]", path)):
        found = _step(found, name)
    return found


def _step(found: Any, name: str) -> Any:
    """Return the type of a field, of a value of a dictionary, or of an entry of a list."""
    for option in _options(found):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return get_type_hints(option, include_extras=True).get(name)
        if get_origin(option) in (dict, tuple, list):
            arguments = [argument for argument in get_args(option) if argument is not Ellipsis]
            return arguments[-1] if arguments else None
    return None


def _options(found: Any) -> list[Any]:
    """Return the alternatives of a type, without annotations."""
    if get_origin(found) is Annotated:
        return _options(get_args(found)[0])
    if get_origin(found) in (Union, UnionType):
        return [option for argument in get_args(found) for option in _options(argument)]
    return [found]
