"""Finds names in backticks, in docstrings and comments of `src/svc`, that do not exist.

A span in backticks is a name if it is one identifier, or identifiers with dots, with or without parentheses. It exists:

* without a dot, if its own file uses it, or if another file has it as a module or in a string without spaces
* and also if another file defines it, or a data file has it, except for one lower-case word, which is too common
* with dots, if each part is a member of the class or module before it, or if its own file uses the first part
* as the name of a source file, if the repository has the file
"""

from __future__ import annotations

import ast
import builtins
import importlib
import io
import keyword
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.documentation.pages import ROOT

SOURCE = ROOT / "src" / "svc"
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
NAME = re.compile(r"([A-Za-z_]\w+(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?")
FILE = re.compile(r"[\w/-]+\.(?:py|toml|yaml|lua|sql|md)")
DATA_FILE = re.compile(r"[\w-]+\.(?:json|txt|wav)")
ONE_WORD = re.compile(r"[a-z]+")
WORD = re.compile(r"\w+")
DATA_SUFFIXES = (".toml", ".yaml", ".lua", ".sql")
DATA_COMMENT = re.compile(r"(?:#|--) .*")
DEFINITION = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# Names that the code does not contain, and why a docstring has them.
EXTERNAL = {
    "Authorization": "a header of RFC 9110",
    "Host": "a header of RFC 9110",
    "Location": "a header of RFC 9110",
    "Max_Tokens": "an unusual spelling of a field",
    "NAME.toml": "a pattern of file names",
    "SIGHUP": "a signal of POSIX",
    "author": "a field that other tools write",
    "close_notify": "an alert of RFC 8446",
    "languages": "a field that other tools write",
    "mine": "an example",
    "ping": "an event of the Anthropic API",
    "proxy_pass": "a setting of nginx",
}


class DocstringNames:
    """What the modules below `source` define, and the names that their docstrings and comments mention."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self.mentioned: dict[Path, list[tuple[int, str]]] = {}
        self._used: dict[Path, set[str]] = {}
        self._defined: set[str] = set()
        self._words = set(keyword.kwlist) | set(dir(builtins))
        self._classes: set[str] = set()
        # By the name of a class or module. Two of one name share an entry.
        self._members: dict[str, set[str]] = defaultdict(set)
        # The bases of a class, and the names in the annotation of an attribute.
        self._types: dict[str, set[str]] = defaultdict(set)
        for path in sorted(source.rglob("*")):
            if path.suffix == ".py":
                self._read_module(path, path.read_text(encoding="utf-8"))
            elif path.suffix in DATA_SUFFIXES:
                self._defined.update(WORD.findall(DATA_COMMENT.sub("", path.read_text(encoding="utf-8"))))

    def find_unknown(self) -> list[str]:
        """Return `FILE:LINE: NAME` of each name that does not exist."""
        return [
            f"{path.relative_to(self._source).as_posix()}:{line}: {name}"
            for path, mentioned in self.mentioned.items()
            for line, name in mentioned
            if not self._exists(name, path)
        ]

    def _exists(self, span: str, path: Path) -> bool:
        if span in EXTERNAL or DATA_FILE.fullmatch(span):
            return True
        if FILE.fullmatch(span):
            return (ROOT / span).exists() or any(self._source.rglob(span))
        match = NAME.fullmatch(span)
        if match is None:
            return True
        owner, *members = match[1].split(".")
        if not members:
            elsewhere = self._words if ONE_WORD.fullmatch(owner) else self._words | self._defined
            return owner in self._used[path] | elsewhere
        if _is_in_library(match[1]):
            return True
        for member in members:
            if not self._has_member(owner, member, path):
                return False
            owner = member
        return True

    def _has_member(self, owner: str, member: str, path: Path) -> bool:
        """Return whether `owner` is a class, module or typed attribute with `member`, or a variable of the file."""
        types = [owner]
        for name in types:
            if member in self._members.get(name, ()):
                return True
            types += self._types.get(name, set()).difference(types)
        used = self._used[path]
        return owner not in self._classes and owner in used and member in used | self._words | self._defined

    def _read_module(self, path: Path, text: str) -> None:
        tree = ast.parse(text)
        docstrings = [node for parent in ast.walk(tree) for node in _docstrings(parent)]
        texts = [(node.lineno, node.value) for node in docstrings]
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                texts.append((token.start[0], token.string))
        self.mentioned[path] = [
            (line + content.count("\n", 0, match.start()), match[1])
            for line, content in texts
            for match in SPAN.finditer(content)
        ]
        parts = path.relative_to(self._source.parent).with_suffix("").parts
        module = parts[-2] if parts[-1] == "__init__" else parts[-1]
        self._words.update(parts)
        for package, part in pairwise(parts):
            self._members[package].add(part)
        used = self._used[path] = set[str]()
        is_docstring = set(map(id, docstrings))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self._classes.add(node.name)
                self._types[node.name].update(_last_part(base) for base in node.bases)
                self._members[node.name].update(_members(node))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self._types[node.target.id].update(WORD.findall(ast.unparse(node.annotation)))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in is_docstring:
                used.update(WORD.findall(node.value))
                if " " not in node.value:
                    self._words.update(WORD.findall(node.value))
            used.update(_identifiers(node))
            self._defined.update(_definitions(node))
        self._members[module].update(used)


def _docstrings(parent: ast.AST) -> Iterator[ast.Constant]:
    """Yield the docstring of a module, class or function, and those of its attributes."""
    for node in parent.body if isinstance(parent, DEFINITION) else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def _identifiers(node: ast.AST) -> Iterator[str]:
    for name in ("id", "attr", "arg", "name", "asname", "module"):
        value = getattr(node, name, None)
        if isinstance(value, str):
            yield from value.split(".")


def _definitions(node: ast.AST) -> Iterator[str]:
    """Yield the names that other files can use: not the variables and parameters of a function."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name
    if isinstance(node, (ast.ClassDef, ast.Module)):
        yield from _assigned(node)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def _assigned(parent: ast.ClassDef | ast.Module) -> Iterator[str]:
    for statement in parent.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        for target in filter(None, targets):
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _members(node: ast.ClassDef) -> Iterator[str]:
    yield from _assigned(node)
    for child in ast.walk(node):
        if child is not node:
            yield from _definitions(child)


def _last_part(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def _is_in_library(name: str) -> bool:
    """Return whether `name` is in a module outside of `svc`, such as `asyncio.Protocol`."""
    module, _, member = name.rpartition(".")
    if name.startswith("svc."):
        return False
    try:
        return hasattr(importlib.import_module(module), member) or bool(importlib.import_module(name))
    except ImportError:
        return False
