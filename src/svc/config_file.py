"""Read a configuration file: `include`, `${NAME}` in strings, and the file and line of each value.

`include = ["other.toml"]` above the first table names files, relative to the file that names them. They apply in their
order, and the file that names them applies after them: tables are merged key by key, arrays of tables such as
`[[providers]]` are joined, and any other value replaces the earlier one.

`${NAME}` in a string is the environment variable NAME, and `$$` is a dollar sign. A variable that is not set is an
error.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from svc.errors import UsageError
from svc.wire.toml_errors import find_path_line

MAX_FILE_BYTES: Final = 16 << 20
MAX_FILES: Final = 64
MAX_INCLUDE_DEPTH: Final = 8
_REFERENCE: Final = re.compile(r"\$(?:\$|\{([^}]*)(\}?))")
VARIABLE_NAME_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_YAML_KEY: Final = re.compile(r"^[A-Za-z_]+:\s*$", re.MULTILINE)
INCLUDE_KEY: Final = "include"


@dataclass(frozen=True)
class ValueOrigin:
    """Where a value comes from: a file, its line from 1 (0 if unknown), and the variables that the value refers to."""

    file: Path
    line: int
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}" if self.line else str(self.file)


@dataclass(frozen=True)
class _SourceFile:
    path: Path
    text: str
    variables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The variables of each string, by the path of the string in this file."""

    def origin_of(self, local_path: str) -> ValueOrigin:
        return ValueOrigin(self.path, find_path_line(self.text, local_path), self.variables.get(local_path, ()))


@dataclass(frozen=True)
class ConfigTables:
    """The merged tables of all files."""

    tables: dict[str, Any] = field(default_factory=dict)
    sources: tuple[_SourceFile, ...] = ()
    """The files, the main one last."""
    owners: dict[str, tuple[int, str]] = field(default_factory=dict)
    """For each merged path, such as `providers[1].name`: the index of its file, and its path in this file."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the paths of all files that were read, the main one last."""
        return tuple(source.path for source in self.sources)

    def find_origin(self, path: str) -> ValueOrigin | None:
        """Return the origin of a value, or of the nearest table around it. None if no file has any of them."""
        while path and path not in self.owners:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        if not path:
            return None
        index, local_path = self.owners[path]
        return self.sources[index].origin_of(local_path)

    def read_lines(self) -> list[tuple[Path, int, str]]:
        """Return file, number and text of each line of all files."""
        return [
            (source.path, number, line)
            for source in self.sources
            for number, line in enumerate(source.text.splitlines(), 1)
        ]


def read_config_file(path: Path, environ: Mapping[str, str]) -> ConfigTables:
    """Read a file and the files that it includes. Raises UsageError with the file and, where possible, the line."""
    reader = _ConfigReader(environ)
    reader.read(path, ())
    return ConfigTables(reader.tables, tuple(reader.sources), reader.owners)


class _ConfigReader:
    """Reads files in the order in which they apply, and merges them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.tables: dict[str, Any] = {}
        self.sources: list[_SourceFile] = []
        self.owners: dict[str, tuple[int, str]] = {}
        self._environ = environ
        self._read: set[Path] = set()

    def read(self, path: Path, parents: tuple[Path, ...]) -> None:
        """Merge the files that a file includes, then the file. `parents` are the files that lead to this one."""
        text = _read_text(path)
        self._read.add(path.resolve())
        source = _SourceFile(path, text)
        tables = self._expand(source, _parse(path, text), "")
        for number, name in enumerate(_included_names(source, tables.pop(INCLUDE_KEY, []))):
            included = path.parent / Path(name).expanduser()
            self._check_include(source, included, f"{INCLUDE_KEY}[{number}]", (*parents, path))
            self.read(included, (*parents, path))
        self.sources.append(source)
        self._merge(self.tables, tables, "", "")

    def _check_include(self, source: _SourceFile, included: Path, local_path: str, parents: tuple[Path, ...]) -> None:
        location = source.origin_of(local_path)
        target = included.resolve()
        if target in {parent.resolve() for parent in parents}:
            chain = " -> ".join(str(parent) for parent in (*parents, included))
            raise UsageError(f"{location}: the files include each other: {chain}.")
        if target in self._read:
            raise UsageError(f"{location}: {included} is included twice.")
        if len(parents) > MAX_INCLUDE_DEPTH:
            raise UsageError(f"{location}: includes are nested more than {MAX_INCLUDE_DEPTH} deep.")
        if len(self._read) >= MAX_FILES:
            raise UsageError(f"{location}: more than {MAX_FILES} files are included.")
        if not included.is_file():
            raise UsageError(f"{location}: there is no file {included}, which {INCLUDE_KEY} names.")

    def _expand(self, source: _SourceFile, value: Any, path: str) -> Any:
        """Return a value with the variables of its strings replaced. Raises UsageError."""
        if isinstance(value, dict):
            return {key: self._expand(source, entry, _join(path, key)) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._expand(source, entry, f"{path}[{index}]") for index, entry in enumerate(value)]
        return self._expand_string(source, value, path) if isinstance(value, str) and "$" in value else value

    def _expand_string(self, source: _SourceFile, value: str, path: str) -> str:
        names: list[str] = []

        def replace(found: re.Match[str]) -> str:
            if found[0] == "$$":
                return "$"
            name, is_closed = found[1], bool(found[2])
            if not is_closed or not VARIABLE_NAME_PATTERN.fullmatch(name):
                raise UsageError(
                    f"{source.origin_of(path)}: `${{` in {path} does not begin the name of a variable and `}}`. "
                    "For a dollar sign, write `$$`."
                )
            if name not in self._environ:
                raise UsageError(
                    f"{source.origin_of(path)}: {path} refers to the environment variable {name}, which is not set."
                )
            names.append(name)
            return self._environ[name]

        expanded = _REFERENCE.sub(replace, value)
        source.variables[path] = tuple(names)
        return expanded

    def _merge(self, target: dict[str, Any], tables: dict[str, Any], path: str, local_path: str) -> None:
        for key, value in tables.items():
            present, key_path, key_local_path = target.get(key), _join(path, key), _join(local_path, key)
            if isinstance(value, dict) and isinstance(present, dict):
                self._own(key_path, key_local_path)
                self._merge(present, value, key_path, key_local_path)
            elif isinstance(present, list) and _is_table_array(value) and _is_table_array(present):
                self._own(key_path, key_local_path)
                for index, entry in enumerate(value):
                    self._own_all(entry, f"{key_path}[{len(present) + index}]", f"{key_local_path}[{index}]")
                target[key] = [*present, *value]
            else:
                self._own_all(value, key_path, key_local_path)
                target[key] = value

    def _own_all(self, value: Any, path: str, local_path: str) -> None:
        self._own(path, local_path)
        if isinstance(value, dict):
            for key, entry in value.items():
                self._own_all(entry, _join(path, key), _join(local_path, key))
        elif isinstance(value, list):
            for index, entry in enumerate(value):
                self._own_all(entry, f"{path}[{index}]", f"{local_path}[{index}]")

    def _own(self, path: str, local_path: str) -> None:
        self.owners[path] = (len(self.sources) - 1, local_path)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise UsageError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB.")
        return content.decode("utf-8-sig")  # editors on Windows write a byte order mark
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        hint = " It looks like YAML, and svc reads TOML only." if _YAML_KEY.search(text) else ""
        raise UsageError(f"{path} is not valid TOML: {error}.{hint}") from error


def _included_names(source: _SourceFile, names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) and name and "\0" not in name for name in names):
        raise UsageError(f'{source.origin_of(INCLUDE_KEY)}: {INCLUDE_KEY} must be a list of files: ["other.toml"].')
    return names


def _is_table_array(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
