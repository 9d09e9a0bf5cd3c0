"""Writes Markdown: tables, and types and values as a reader of JSON or TOML knows them."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

TYPE_WORDS = {
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.DictType: "object",
    msgspec.inspect.AnyType: "any",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. A pipe in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def paragraph(text: str) -> str:
    """A paragraph with lines of at most 120 columns."""
    return "\n".join(textwrap.wrap(" ".join(text.split()), 120, break_on_hyphens=False, break_long_words=False))


def code(value: object) -> str:
    """The value as JSON, in a code span."""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def type_text(kind: Any) -> str:
    """A type of `msgspec.inspect` in words: `integer, 1 to 256`."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return type_text(kind.type)
    if isinstance(kind, msgspec.inspect.UnionType):
        return " or ".join(type_text(each) for each in kind.types if not isinstance(each, msgspec.inspect.NoneType))
    if isinstance(kind, msgspec.inspect.LiteralType):
        return " or ".join(code(value) for value in kind.values)
    if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        word = "integer" if isinstance(kind, msgspec.inspect.IntType) else "number"
        return word + _range(kind.ge, kind.gt, kind.le, kind.lt)
    if isinstance(kind, msgspec.inspect.StrType):
        return f"string, `{kind.pattern}`" if kind.pattern else "string"
    if isinstance(kind, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
        return f"list of {_plural(type_text(kind.item_type))}"
    if isinstance(kind, msgspec.inspect.StructType):
        return "object"
    return TYPE_WORDS[type(kind)]


def _plural(words: str) -> str:
    first, comma, rest = words.partition(",")
    return first if first.endswith("`") or first.startswith("list") else f"{first}s{comma}{rest}"


def _range(ge: float | None, gt: float | None, le: float | None, lt: float | None) -> str:
    low = f"{ge:g}" if ge is not None else f"above {gt:g}" if gt is not None else ""
    high = le if le is not None else lt
    if high is None or high >= 2**31:
        return f", {low} or more" if ge is not None else f", {low}" if low else ""
    if gt is not None:
        return f", {low}, at most {high:,}"
    return f", {low} to {high:,}" if low else f", at most {high:,}"


@functools.cache
def field_docs(struct: type[Any]) -> dict[str, str]:
    """The docstring of each field of a class, from its source and that of its bases."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__module__.startswith("svc."):
            found |= _own_field_docs(base)
    return found


def _own_field_docs(struct: type[Any]) -> dict[str, str]:
    module = ast.parse(inspect.getsource(sys.modules[struct.__module__]))
    body = next(node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == struct.__name__)
    docs = {}
    for field, following in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[field.target.id] = inspect.cleandoc(str(following.value.value))
    return docs


def struct_rows(struct: type[Any]) -> list[tuple[str, str, str, str]]:
    """Name, type, default and meaning of each field. Raises LookupError for a field without a docstring."""
    rows = []
    docs = field_docs(struct)
    for field in msgspec.inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        if field.encode_name not in docs:
            raise LookupError(f"{struct.__name__}.{field.encode_name} has no docstring")
        rows.append((f"`{field.encode_name}`", type_text(field.type), _default(field), docs[field.encode_name]))
    return rows


def _default(field: msgspec.inspect.Field) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()  # type: ignore[operator,misc]
    return "none" if value in (None, (), [], {}, "", msgspec.UNSET) else code(value)


def docstring(thing: object) -> str:
    """The docstring as one paragraph per blank line."""
    return textwrap.dedent(inspect.getdoc(thing) or "").strip()
