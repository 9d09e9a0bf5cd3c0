"""Applies the rows of rename.csv to the sources: LibCST finds names and scopes, mypy the class that owns an attribute.

    python tools/rename/codemod.py tools/rename/rename.csv            report what would change
    python tools/rename/codemod.py tools/rename/rename.csv --write    change the files and move them with `git mv`

Rows:  module,<old dotted name>,<new dotted name>
       file,<old path>,<new path>
       symbol,<module>.<name>,<new name>               a class, function or constant
       symbol,<module>.<Class>.<attribute>,<new name>  with its overrides in subclasses
       symbol,<module>.<function>:<local>,<new name>   a parameter, with the keyword arguments that name it, or a local
"""

from __future__ import annotations

import contextlib
import csv
import functools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst
from libcst.metadata import (
    Assignment,
    ClassScope,
    FunctionScope,
    GlobalScope,
    ImportAssignment,
    MetadataWrapper,
    PositionProvider,
    ScopeProvider,
)
from mypy import build, nodes, types
from mypy.find_sources import create_source_list
from mypy.options import Options
from mypy.patterns import ClassPattern

ROOTS = ("src", "tests", "bench", "native")
TEXTS = ("pyproject.toml", "Makefile", "native/modules.txt", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")


@dataclass
class Rows:
    modules: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    locals: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def read(cls, path: Path) -> Rows:
        rows = cls()
        for row in csv.reader(path.read_text().splitlines()):
            if not row or row[0].startswith("#"):
                continue
            kind, old, new = (part.strip() for part in row)
            if kind == "module":
                rows.modules[old] = new
            elif kind == "file":
                rows.files[old] = new
            elif ":" in old:
                owner, _, name = old.partition(":")
                rows.locals[owner][name] = new
            else:
                rows.symbols[old] = new
        return rows


@dataclass
class Found:
    """mypy's findings for one file, by position: (line, column) of the end of a name, in characters."""

    attributes: dict[tuple[int, int], str] = field(default_factory=dict)  # end of the attribute's name -> new name
    keywords: dict[tuple[int, int], dict[str, str]] = field(default_factory=dict)  # start of a call -> keyword -> new
    strings: dict[tuple[int, int], str] = field(default_factory=dict)  # start of a string -> new text
    unknown: dict[tuple[int, int], str] = field(default_factory=dict)  # attributes of values without a known type


class Types:
    """Renames of attributes, decided by the class that defines them."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.names = {old.rpartition(".")[2] for old in rows.symbols}
        self.params = {name for names in rows.locals.values() for name in names}
        self.infos: dict[str, nodes.TypeInfo] = {}

    def infos_of(self, kind: types.Type | None) -> Iterator[nodes.TypeInfo]:
        if kind is None:
            return
        kind = types.get_proper_type(kind)
        if isinstance(kind, types.Instance):
            yield kind.type
        elif isinstance(kind, types.UnionType):
            for item in kind.items:
                yield from self.infos_of(item)
        elif isinstance(kind, types.TypeVarType):
            yield from self.infos_of(kind.upper_bound)
            for item in kind.values:
                yield from self.infos_of(item)
        elif isinstance(kind, types.TupleType):
            yield from self.infos_of(kind.partial_fallback)
        elif isinstance(kind, types.LiteralType):
            yield from self.infos_of(kind.fallback)
        elif isinstance(kind, types.TypeType):
            yield from self.infos_of(kind.item)
        elif (isinstance(kind, types.CallableType) and kind.is_type_obj()) or (
            isinstance(kind, types.Overloaded) and kind.is_type_obj()
        ):
            yield kind.type_object()
        elif isinstance(kind, types.TypedDictType):
            yield from self.infos_of(kind.fallback)

    def is_known(self, kind: types.Type | None) -> bool:
        if kind is None:
            return False
        kind = types.get_proper_type(kind)
        if isinstance(kind, types.AnyType):
            return False
        if isinstance(kind, types.UnionType):
            return not any(isinstance(types.get_proper_type(item), types.AnyType) for item in kind.items)
        return True

    def attribute(self, info: nodes.TypeInfo, name: str) -> str | None:
        for base in info.mro:
            new = self.rows.symbols.get(f"{base.fullname}.{name}")
            if new is not None:
                return new
        return None

    def parameter(self, function: nodes.Node | None, info: nodes.TypeInfo | None, name: str) -> str | None:
        """Return the new name of a parameter of a function, or of the method of that name in a base class."""
        if isinstance(function, nodes.Decorator):
            function = function.func
        if isinstance(function, nodes.OverloadedFuncDef):
            for item in function.items:
                new = self.parameter(item, info, name)
                if new:
                    return new
            return None
        if not isinstance(function, nodes.FuncDef):
            return None
        owners = [function.fullname]
        if function.info:
            owners += [f"{base.fullname}.{function.name}" for base in function.info.mro]
        for owner in owners:
            new = self.rows.locals.get(owner, {}).get(name)
            if new is not None:
                return new
        return None


class Reader:
    """Walks a module's tree by reflection: mypy's own visitor is compiled and takes no interpreted subclass."""

    SKIPPED = frozenset(
        (
            "node",
            "info",
            "type",
            "analyzed",
            "fullname",
            "def_var",
            "names",
            "unanalyzed_items",
            "unanalyzed_type",
            "target",
        )
    )

    def __init__(self, finder: Types, kinds: dict[nodes.Expression, types.Type], lines: list[str]) -> None:
        self.finder = finder
        self.kinds = kinds
        self.lines = lines
        self.found = Found()

    def walk(self, root: nodes.Node) -> None:
        seen: set[int] = set()
        waiting: list[object] = [root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, list | tuple):
                waiting += node
                continue
            if isinstance(node, types.Type) or id(node) in seen:
                continue
            if (
                not isinstance(node, nodes.Node)
                and type(node).__name__ not in ("Argument",)
                and "Pattern" not in type(node).__name__
            ):
                continue
            seen.add(id(node))
            visit = getattr(self, f"visit_{type(node).__name__}", None)
            if visit is not None:
                visit(node)
            for name in _fields(type(node)):
                if name not in self.SKIPPED:
                    with contextlib.suppress(AssertionError, AttributeError):
                        waiting.append(getattr(node, name))

    def _place(self, line: int, column: int) -> tuple[int, int]:
        """Convert to characters, since mypy counts bytes."""
        text = self.lines[line - 1]
        return line, column if text.isascii() else len(text.encode()[:column].decode(errors="replace"))

    def visit_MemberExpr(self, o: nodes.MemberExpr) -> None:
        name = o.name
        if name not in self.finder.names or o.end_line is None or o.end_column is None:
            return
        place = self._place(o.end_line, o.end_column)
        inner = o.expr
        if isinstance(inner, nodes.RefExpr) and isinstance(inner.node, nodes.MypyFile):
            new = self.finder.rows.symbols.get(f"{inner.node.fullname}.{name}")
            if new:
                self.found.attributes[place] = new
            return
        kind = self.kinds.get(inner)
        if (kind is None and isinstance(inner, nodes.RefExpr) and isinstance(inner.node, nodes.TypeInfo)) or (
            isinstance(inner, nodes.RefExpr) and isinstance(inner.node, nodes.TypeInfo)
        ):
            infos = [inner.node]
        else:
            infos = list(self.finder.infos_of(kind))
        news = {self.finder.attribute(info, name) for info in infos}
        if len(news) > 1:
            real = news - {None}
            if len(real) == 1 and None in news:
                missing = [i.fullname for i in infos if not self.finder.attribute(i, name) and i.get(name)]
                if missing and isinstance(types.get_proper_type(kind), types.UnionType):
                    self.found.unknown[place] = f"{name}: union of {[i.fullname for i in infos]}"
                    return
                news = real
            else:
                self.found.unknown[place] = f"{name}: union with {news}"
                return
        if news and None not in news:
            self.found.attributes[place] = news.pop()  # type: ignore[assignment]
        elif not self.finder.is_known(kind):
            self.found.unknown[place] = name

    def visit_SuperExpr(self, o: nodes.SuperExpr) -> None:
        if o.name in self.finder.names and o.info and o.end_line and o.end_column:
            for base in o.info.mro[1:]:
                new = self.finder.attribute(base, o.name)
                if new:
                    self.found.attributes[self._place(o.end_line, o.end_column)] = new
                    return

    def visit_ClassPattern(self, o: ClassPattern) -> None:
        node = o.class_ref.node
        if isinstance(node, nodes.TypeInfo):
            news = {key: new for key in o.keyword_keys if (new := self.finder.attribute(node, key))}
            if news:
                self.found.keywords[self._place(o.line, o.column)] = news

    def visit_CallExpr(self, o: nodes.CallExpr) -> None:
        self._strings(o)
        keywords = [name for name in o.arg_names if name]
        if not keywords:
            return
        news: dict[str, str] = {}
        for name in keywords:
            if name in self.finder.params or name in self.finder.names:
                new = self._keyword(o, name)
                if new:
                    news[name] = new
        if news:
            assert o.end_line is not None
            assert o.end_column is not None
            self.found.keywords[self._place(o.end_line, o.end_column)] = news

    def _keyword(self, call: nodes.CallExpr, name: str) -> str | None:
        callee = call.callee
        if isinstance(callee, nodes.RefExpr) and callee.fullname in (
            "dataclasses.replace",
            "msgspec.structs.replace",
            "copy.replace",
        ):
            for info in self.finder.infos_of(self.kinds.get(call.args[0])):
                return self.finder.attribute(info, name)
        if isinstance(callee, nodes.RefExpr) and callee.fullname == "functools.partial" and call.args:
            return self._of_function(call.args[0], name)
        return self._of_function(callee, name)

    def _of_function(self, callee: nodes.Expression, name: str) -> str | None:
        node: nodes.Node | None = callee.node if isinstance(callee, nodes.RefExpr) else None
        if isinstance(callee, nodes.MemberExpr) and node is None:
            for info in self.finder.infos_of(self.kinds.get(callee.expr)):
                if callee.name == "_replace":
                    return self.finder.attribute(info, name)
                found = info.get(callee.name)
                node = found.node if found else None
                if isinstance(node, nodes.TypeInfo):
                    break
                new = self.finder.parameter(node, info, name)
                if new:
                    return new
        if isinstance(callee, nodes.SuperExpr) and callee.info:
            for base in callee.info.mro[1:]:
                found = base.names.get(callee.name)
                if found:
                    if callee.name == "__init__" and isinstance(found.node, nodes.FuncDef) and found.node.line < 0:
                        return self.finder.attribute(base, name)
                    return self.finder.parameter(found.node, base, name)
        if isinstance(node, nodes.TypeAlias):
            for info in self.finder.infos_of(node.target):
                node = info
        if not isinstance(node, nodes.TypeInfo):
            if node is not None and not isinstance(node, nodes.Var):
                return self.finder.parameter(node, None, name)
            infos = list(self.finder.infos_of(self.kinds.get(callee)))
            kind = types.get_proper_type(self.kinds.get(callee)) if self.kinds.get(callee) else None
            if infos and isinstance(kind, types.CallableType | types.TypeType | types.Overloaded):
                node = infos[0]
            elif isinstance(kind, types.CallableType) and kind.definition is not None:
                return self.finder.parameter(kind.definition, None, name)
            else:
                return None
        info = node
        for maker in ("__init__", "__new__"):
            found = info.get(maker)
            made = found.node if found else None
            if isinstance(made, nodes.FuncDef) and made.info and made.info.fullname.startswith("builtins"):
                continue
            if isinstance(made, nodes.FuncDef | nodes.OverloadedFuncDef) and name in _arguments(made):
                own = self.finder.parameter(made, info, name)
                return own if own else (self.finder.attribute(info, name) if _is_made(info, made) else None)
        return self.finder.attribute(info, name)

    def _strings(self, call: nodes.CallExpr) -> None:
        """Handle getattr(x, "name"), monkeypatch.setattr(x, "name", ...) and the like."""
        callee = call.callee
        name = callee.name if isinstance(callee, nodes.MemberExpr | nodes.NameExpr) else ""
        if name not in ("setattr", "getattr", "hasattr", "delattr", "object", "attrgetter") or len(call.args) < 2:
            return
        place, text = call.args[0], call.args[1]
        if not isinstance(text, nodes.StrExpr) or text.value not in self.finder.names:
            return
        new = None
        if isinstance(place, nodes.RefExpr) and isinstance(place.node, nodes.MypyFile):
            new = self.finder.rows.symbols.get(f"{place.node.fullname}.{text.value}")
        elif isinstance(place, nodes.RefExpr) and isinstance(place.node, nodes.TypeInfo):
            new = self.finder.attribute(place.node, text.value)
        else:
            for info in self.finder.infos_of(self.kinds.get(place)):
                new = new or self.finder.attribute(info, text.value)
        if new:
            self.found.strings[self._place(text.line, text.column)] = new
        elif not self.finder.is_known(self.kinds.get(place)):
            self.found.unknown[self._place(text.line, text.column)] = f"string {text.value}"


@functools.cache
def _fields(kind: type) -> list[str]:
    """Return the attributes of a compiled class."""
    names: set[str] = set()
    for base in kind.__mro__:
        names |= {
            n
            for n, v in vars(base).items()
            if not n.startswith("__") and type(v).__name__ in ("getset_descriptor", "member_descriptor")
        }
        names |= set(getattr(base, "__mypyc_attrs__", ()))
    return sorted(n for n in names if not n.startswith("__"))


def _arguments(made: nodes.FuncDef | nodes.OverloadedFuncDef) -> list[str]:
    if isinstance(made, nodes.FuncDef):
        return [name or "" for name in made.arg_names]
    return [name for item in made.items if isinstance(item, nodes.FuncDef) for name in _arguments(item)]


def _is_made(info: nodes.TypeInfo, made: nodes.FuncDef | nodes.OverloadedFuncDef) -> bool:
    """Whether dataclass, msgspec or NamedTuple generates the constructor from the fields."""
    return (
        bool(getattr(info, "is_named_tuple", False))
        or "dataclass" in info.metadata
        or any(base.fullname == "msgspec.Struct" for base in info.mro)
        or "dataclass_transform" in str(info.metadata)
    )


def analyse(rows: Rows) -> tuple[dict[Path, Found], dict[str, nodes.TypeInfo], dict[Path, str]]:
    options = Options()
    options.python_version = (3, 11)
    options.export_types = True
    options.preserve_asts = True
    options.incremental = False
    options.check_untyped_defs = True
    options.ignore_missing_imports = True
    options.namespace_packages = True
    options.explicit_package_bases = True
    options.mypy_path = ["src", "."]
    options.show_traceback = True
    for package in (
        "openai",
        "anthropic",
        "ray",
        "numpy",
        "onnx",
        "hypothesis",
        "huggingface_hub",
        "google",
        "cryptography",
    ):
        options.per_module_options[f"{package}.*"] = {"follow_imports": "skip"}
        options.per_module_options[package] = {"follow_imports": "skip"}
    options.build_per_module_cache()
    sources = create_source_list([*ROOTS[:3], "native/compile.py"], options)
    result = build.build(sources, options)
    finder = Types(rows)
    found: dict[Path, Found] = {}
    names: dict[Path, str] = {}
    infos: dict[str, nodes.TypeInfo] = {}
    for module, tree in result.files.items():
        path = Path(tree.path)
        if not any(str(path).startswith(root + "/") for root in ROOTS):
            continue
        reader = Reader(finder, result.types, path.read_text().splitlines())
        reader.walk(tree)
        found[path] = reader.found
        names[path] = module
        for _, symbol, _ in tree.local_definitions():
            if isinstance(symbol.node, nodes.TypeInfo):
                infos[symbol.node.fullname] = symbol.node
    return found, infos, names


class Edits(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, ScopeProvider)

    def __init__(
        self, module: str, rows: Rows, found: Found, finder: Types, infos: dict[str, nodes.TypeInfo], report: list[str]
    ) -> None:
        super().__init__()
        self.module = module
        self.rows = rows
        self.found = found
        self.finder = finder
        self.infos = infos
        self.report = report
        self.edits: dict[tuple[int, int, int, int], str] = {}
        self.stack: list[str] = []
        self.kinds: list[str] = []

    # -- positions

    def _name(self, node: cst.CSTNode, new: str) -> None:
        span = self.get_metadata(PositionProvider, node)
        self.edits[span.start.line, span.start.column, span.end.line, span.end.column] = new

    @property
    def qualified(self) -> str:
        return ".".join([self.module, *self.stack])

    # -- definitions

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._definition(node.name)
        self.stack.append(node.name.value)
        self.kinds.append("class")
        self._slots(node)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.stack.pop()
        self.kinds.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._definition(node.name)
        self.stack.append(node.name.value)
        self.kinds.append("function")

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.stack.pop()
        self.kinds.pop()

    def _definition(self, name: cst.Name) -> None:
        if self.kinds and self.kinds[-1] == "class":
            info = self.infos.get(self.qualified)
            new = (
                self.finder.attribute(info, name.value)
                if info
                else self.rows.symbols.get(f"{self.qualified}.{name.value}")
            )
            if new:
                self._name(name, new)

    def _slots(self, node: cst.ClassDef) -> None:
        info = self.infos.get(self.qualified)
        if info is None or not isinstance(node.body, cst.IndentedBlock):
            return
        for statement in node.body.body:
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            for part in statement.body:
                if isinstance(part, cst.Assign):
                    for target in part.targets:
                        if isinstance(target.target, cst.Name):
                            if target.target.value in ("__slots__", "__match_args__", "__deletable__"):
                                self._rename_strings(part.value, info)
                            self._member(target.target, info)
                        elif isinstance(target.target, cst.Tuple):
                            for element in target.target.elements:
                                if isinstance(element.value, cst.Name):
                                    self._member(element.value, info)
                elif isinstance(part, cst.AnnAssign) and isinstance(part.target, cst.Name):
                    self._member(part.target, info)

    def _member(self, name: cst.Name, info: nodes.TypeInfo) -> None:
        new = self.finder.attribute(info, name.value)
        if new:
            self._name(name, new)

    def _rename_strings(self, value: cst.BaseExpression, info: nodes.TypeInfo) -> None:
        elements = value.elements if isinstance(value, cst.Tuple | cst.List) else ()
        items = [element.value for element in elements] or [value]
        for item in items:
            if isinstance(item, cst.SimpleString):
                new = self.finder.attribute(info, str(item.evaluated_value))
                if new:
                    self._name(item, f'"{new}"')

    # -- attributes, keywords, strings

    def visit_Attribute(self, node: cst.Attribute) -> None:
        end = self.get_metadata(PositionProvider, node.attr).end
        new = self.found.attributes.get((end.line, end.column))
        if new:
            self._name(node.attr, new)

    def visit_Call(self, node: cst.Call) -> None:
        end = self._end(node)
        news = self.found.keywords.get(end)
        if news:
            for arg in node.args:
                if arg.keyword is not None and arg.keyword.value in news:
                    self._name(arg.keyword, news[arg.keyword.value])

    def visit_MatchClass(self, node: cst.MatchClass) -> None:
        start = self.get_metadata(PositionProvider, node).start
        news = self.found.keywords.get((start.line, start.column))
        if news:
            for element in node.kwds:
                if element.key.value in news:
                    self._name(element.key, news[element.key.value])

    def _end(self, node: cst.Call) -> tuple[int, int]:
        end = self.get_metadata(PositionProvider, node).end
        column = end.column
        return end.line, column - sum(1 for _ in node.rpar)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        start = self.get_metadata(PositionProvider, node).start
        new = self.found.strings.get((start.line, start.column))
        if new:
            self._name(node, f'"{new}"')

    # -- imports

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        if node.module is None or node.relative or isinstance(node.names, cst.ImportStar):
            return
        source = _dotted(node.module)
        if not source.startswith(("svc", "tests", "bench", "native")):
            return
        groups: dict[str, list[str]] = defaultdict(list)
        changed = False
        for alias in node.names:
            name = alias.name.value if isinstance(alias.name, cst.Name) else _dotted(alias.name)
            whole = f"{source}.{name}"
            asname = alias.asname.name.value if alias.asname and isinstance(alias.asname.name, cst.Name) else None
            moved = self.rows.modules.get(whole)
            if moved:
                target, _, new = moved.rpartition(".")
            elif whole in self.rows.symbols:
                target, new = self.rows.modules.get(source, source), self.rows.symbols[whole]
            else:
                target, new = self.rows.modules.get(source, source), name
                origin = self._origin(source, name)
                if origin:
                    new = self.rows.symbols.get(origin, name)
            changed = changed or target != source or new != name
            groups[target].append(f"{new} as {asname}" if asname and asname != new else new)
        if changed:
            span = self.get_metadata(PositionProvider, node)
            indent = " " * span.start.column
            text = f"\n{indent}".join(
                f"from {target} import {_names(names, indent)}" for target, names in groups.items()
            )
            self.edits[span.start.line, span.start.column, span.end.line, span.end.column] = text

    def _origin(self, source: str, name: str) -> str | None:
        """Return the module that defines a name that `source` re-exports."""
        return self.passed_on.get((source, name))

    passed_on: dict[tuple[str, str], str] = {}

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            name = _dotted(alias.name)
            if name in self.rows.modules:
                self._name(alias.name, self.rows.modules[name])
                if alias.asname is None:
                    self.report.append(f"{self.module}: import {name}: check its uses by hand")

    # -- scopes

    def finish(self, scopes: set[object]) -> None:
        """Module-level names, parameters and locals: every reference that LibCST resolves to the renamed definition."""
        for scope in scopes:
            if isinstance(scope, GlobalScope):
                self._globals(scope)
            elif isinstance(scope, FunctionScope):
                self._imports(scope)
                self._function(scope)

    def _globals(self, scope: GlobalScope) -> None:
        self._imports(scope)
        for assignment in scope.assignments:
            if isinstance(assignment, Assignment):
                new = self.rows.symbols.get(f"{self.module}.{assignment.name}")
                if new and not isinstance(assignment, ImportAssignment):
                    self._rename(assignment, new)

    def _imports(self, scope: GlobalScope | FunctionScope) -> None:
        for assignment in scope.assignments:
            if not isinstance(assignment, ImportAssignment) or not isinstance(assignment.node, cst.ImportFrom):
                continue
            node = assignment.node
            if node.module is None or node.relative:
                continue
            source = _dotted(node.module)
            alias = assignment.as_name
            name = assignment.name
            for imported in node.names if not isinstance(node.names, cst.ImportStar) else ():
                if imported.asname is None and isinstance(imported.name, cst.Name) and imported.name.value == name:
                    whole = f"{source}.{name}"
                    new = self.rows.symbols.get(whole)
                    if whole in self.rows.modules:
                        new = self.rows.modules[whole].rpartition(".")[2]
                    elif new is None:
                        origin = self._origin(source, name)
                        new = self.rows.symbols.get(origin) if origin else None
                    if new and new != name:
                        self._references(assignment, name, new)
            del alias

    def _function(self, scope: FunctionScope) -> None:
        function = scope.node
        owner = self.owners.get(function) if isinstance(function, cst.FunctionDef) else None
        if owner is None:
            return
        qualified, info = owner
        name = qualified.rpartition(".")[2]
        names: dict[str, str] = {}
        if info is not None:
            for base in reversed(info.mro):
                for old, new in self.rows.locals.get(f"{base.fullname}.{name}", {}).items():
                    if base.fullname == info.fullname or old in _parameters(function):
                        names[old] = new
        else:
            names |= self.rows.locals.get(qualified, {})
        for old, new in names.items():
            if old not in {a.name for a in scope.assignments}:
                continue
            if new in {a.name for a in scope.assignments}:
                self.report.append(f"{self.module}: {qualified}:{old}: {new} exists already")
                continue
            for assignment in scope[old]:
                if isinstance(assignment, Assignment) and assignment.scope is scope:
                    self._rename(assignment, new)

    owners: dict[cst.FunctionDef, tuple[str, nodes.TypeInfo | None]] = {}

    def _rename(self, assignment: Assignment, new: str) -> None:
        node = assignment.node
        if isinstance(node, cst.ClassDef | cst.FunctionDef | cst.Param):
            self._name(node.name, new)
        elif isinstance(node, cst.Name):
            self._name(node, new)
        elif isinstance(node, cst.CSTNode):
            for name in _names_in(node, assignment.name):
                self._name(name, new)
        self._references(assignment, assignment.name, new)

    def _references(self, assignment: Assignment | ImportAssignment, old: str, new: str) -> None:
        for access in assignment.references:
            node = access.node
            if isinstance(node, cst.Attribute):
                while isinstance(node, cst.Attribute):
                    node = node.value  # type: ignore[assignment]
            if isinstance(node, cst.Name) and node.value == old:
                if _is_shadowed(access.scope, assignment.scope, new):
                    self.report.append(f"{self.module}: {old} -> {new} is shadowed in a function")
                self._name(node, new)
            elif isinstance(node, cst.SimpleString):
                self.report.append(f"{self.module}: string annotation {node.value}")


def _is_shadowed(inner: object, outer: object, name: str) -> bool:
    scope = inner
    while scope is not outer and scope is not None and not isinstance(scope, GlobalScope):
        if not isinstance(scope, ClassScope) and name in {a.name for a in scope.assignments}:  # type: ignore[attr-defined]
            return True
        if scope is getattr(scope, "parent", None):
            return False
        scope = getattr(scope, "parent", None)
    return False


def _parameters(function: cst.FunctionDef) -> set[str]:
    params = function.params
    return {p.name.value for p in (*params.params, *params.kwonly_params, *params.posonly_params)}


def _names_in(node: cst.CSTNode, name: str) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name) and node.value == name:
        yield node
    for child in node.children:
        yield from _names_in(child, name)


def _dotted(node: cst.CSTNode) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def _names(names: list[str], indent: str) -> str:
    line = ", ".join(names)
    return line if len(line) < 70 else "(\n" + "".join(f"{indent}    {name},\n" for name in names) + f"{indent})"


class Owners(cst.CSTVisitor):
    """Return the full name of each function, and the class of each method."""

    def __init__(self, module: str, infos: dict[str, nodes.TypeInfo]) -> None:
        super().__init__()
        self.stack = [module]
        self.kinds = ["module"]
        self.infos = infos
        self.owners: dict[cst.FunctionDef, tuple[str, nodes.TypeInfo | None]] = {}

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.stack.append(node.name.value)
        self.kinds.append("class")

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.stack.pop()
        self.kinds.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        info = self.infos.get(".".join(self.stack)) if self.kinds[-1] == "class" else None
        self.stack.append(node.name.value)
        self.kinds.append("function")
        self.owners[node] = (".".join(self.stack), info)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.stack.pop()
        self.kinds.pop()


def apply(text: str, edits: dict[tuple[int, int, int, int], str]) -> str:
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    spans = sorted((starts[a - 1] + b, starts[c - 1] + d, new) for (a, b, c, d), new in edits.items())
    kept: list[tuple[int, int, str]] = []
    for span in spans:
        if kept and span[0] < kept[-1][1]:
            continue  # inside an import statement that is rewritten
        kept.append(span)
    for start, end, new in reversed(kept):
        text = text[:start] + new + text[end:]
    return text


def passed_on(infos: dict[Path, str]) -> dict[tuple[str, str], str]:
    """Map (module, name) to its definition, for names that a module imports and others import from it."""
    found: dict[tuple[str, str], str] = {}
    pattern = re.compile(r"^from (svc[\w.]*) import (\([^)]*\)|.+)$", re.M)
    for path, module in infos.items():
        for match in pattern.finditer(path.read_text()):
            for name in re.split(r"[,\s()]+", match[2].split("#")[0]):
                if name.isidentifier():
                    found[module, name] = f"{match[1]}.{name}"
    for key, value in list(found.items()):
        source, _, name = value.rpartition(".")
        for _ in range(5):
            if (source, name) in found:
                source, _, name = found[source, name].rpartition(".")
        found[key] = f"{source}.{name}"
    return found


def clashes(rows: Rows, infos: dict[str, nodes.TypeInfo]) -> list[str]:
    """Find new attribute names that the class, a base or a subclass already has."""
    report = []
    for old, new in rows.symbols.items():
        owner, _, name = old.rpartition(".")
        info = infos.get(owner)
        if info is None:
            continue
        if name not in info.names:
            report.append(f"no such member: {old}")
            continue
        family = [one for one in infos.values() if info in one.mro or one in info.mro]
        for one in family:
            if new in one.names and f"{one.fullname}.{new}" not in rows.symbols:
                report.append(f"clash: {old} -> {new}: {one.fullname} has it")
            if (
                one is not info
                and one in info.mro
                and name in one.names
                and one.fullname.startswith("svc")
                and rows.symbols.get(f"{one.fullname}.{name}") != new
            ):
                other = rows.symbols.get(f"{one.fullname}.{name}")
                report.append(f"base differs: {old} -> {new}: {one.fullname}.{name} -> {other}")
    return report


def main() -> int:
    rows = Rows.read(Path(sys.argv[1]))
    write = "--write" in sys.argv
    found, infos, modules = analyse(rows)
    finder = Types(rows)
    report: list[str] = []
    Edits.passed_on = passed_on(modules)
    report += clashes(rows, infos)
    total = 0
    for path, module in sorted(modules.items()):
        text = path.read_text()
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        owners = Owners(module, infos)
        wrapper.module.visit(owners)
        visitor = Edits(module, rows, found[path], finder, infos, report)
        visitor.owners = owners.owners
        wrapper.visit(visitor)
        with visitor.resolve(wrapper):
            visitor.finish({scope for scope in wrapper.resolve(ScopeProvider).values() if scope is not None})
        for place, name in sorted(found[path].unknown.items()):
            report.append(f"{path}:{place[0]}: unknown {name}: {text.splitlines()[place[0] - 1].strip()[:110]}")
        total += len(visitor.edits)
        if write:
            path.write_text(apply(text, visitor.edits))
    print("\n".join(report))
    print(f"{total} edits, {len(report)} to review", file=sys.stderr)
    if write:
        move(rows)
    return 0


def move(rows: Rows) -> None:
    pairs = dict(rows.files)
    for old, new in rows.modules.items():
        for base in (f"src/{old.replace('.', '/')}.py",):
            if Path(base).exists():
                pairs[base] = f"src/{new.replace('.', '/')}.py"
    # In two steps: a new name may be the old name of another.
    for index, (old, new) in enumerate(pairs.items()):
        if old != new:
            subprocess.run(["git", "mv", old, f"{old}.moving{index}"], check=True)
    for index, (old, new) in enumerate(pairs.items()):
        if old != new:
            Path(new).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", f"{old}.moving{index}", new], check=True)
    texts(rows, pairs)


def texts(rows: Rows, pairs: dict[str, str]) -> None:
    """Replace paths and dotted names in strings, comments and documents."""
    paths = dict(pairs)
    for old, new in pairs.items():
        if old.startswith("src/svc/"):
            paths[old[8:]] = new[8:]
    names = {**rows.modules}
    for old, new in rows.symbols.items():
        owner, _, _ = old.rpartition(".")
        names[old] = f"{rows.modules.get(owner, owner)}.{new}"
    table = {**paths, **{old: new for old, new in names.items() if old != new}}
    table = {old: new for old, new in table.items() if old != new and ("/" in old or old.count(".") > 1)}
    whole = re.compile(
        r"(?<![\w./-])(" + "|".join(sorted(map(re.escape, table), key=len, reverse=True)) + r")(?![\w/])"
    )
    files = [Path(name) for name in TEXTS] + [
        p
        for root in (*ROOTS, "docs", ".ci")
        for p in Path(root).rglob("*")
        if p.suffix in (".py", ".md", ".toml", ".txt", ".yaml", "")
    ]
    for path in files:
        if path.is_file() and "__pycache__" not in path.parts and path != Path(sys.argv[1]):
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            new = "".join(
                line if re.match(r"\s*(from|import) svc", line) else whole.sub(lambda match: table[match[1]], line)
                for line in text.splitlines(keepends=True)
            )
            if new != text:
                path.write_text(new)


if __name__ == "__main__":
    sys.exit(main())
