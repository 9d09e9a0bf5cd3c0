"""Compiles the hot path with mypyc, in place: the same source, as extension modules. `make native`, `make pure`.

Without a C compiler or Python's headers, nothing is compiled and the gateway runs from source. It is slower then, and
otherwise the same. Python imports a compiled module as long as it exists: `check` reports changed sources.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from mypy.version import __version__
from mypyc.build import mypycify
from setuptools import setup

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
BUILD = ROOT / "build" / "native"
STAMP = BUILD / "sha256"
LISTED = Path(__file__).with_name("modules.txt")
OPTIONS = (
    *("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(BUILD / "types")),
    *("--ignore-missing-imports", "--no-warn-unused-ignores"),
)


def sources() -> list[Path]:
    """Return the listed modules. Raises SystemExit for a name that is missing, listed twice, or cannot be compiled."""
    names = [line for line in LISTED.read_text().splitlines() if line and not line.startswith("#")]
    paths = [SOURCE / "svc" / name for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.is_file():
            raise SystemExit(f"{LISTED.name}: {name}: there is no such file below src/svc")
        if names.count(name) > 1:
            raise SystemExit(f"{LISTED.name}: {name} is listed twice")
        if "(msgspec.Struct" in path.read_text():
            raise SystemExit(
                f"{LISTED.name}: {name} cannot be compiled: msgspec reads annotations that compiling changes"
            )
    return sorted(paths)


def known() -> list[Path]:
    """Return the listed modules and their transitive imports of svc: their types and constants are compiled in."""
    found: set[Path] = set()
    waiting = sources()
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path)
    return sorted(found)


def _imported(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("svc"):
            place = SOURCE.joinpath(*node.module.split("."))
            names = [place.with_suffix(".py"), *(place / f"{name.name}.py" for name in node.names)]
            yield from (name for name in names if name.is_file())


def digest() -> str:
    """Return a digest of everything that affects the compiled code."""
    sha = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()} {__version__}".encode())
    for path in (Path(__file__), LISTED, ROOT / "pyproject.toml", *known()):
        sha.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return sha.hexdigest()


def compiled() -> list[Path]:
    """Return the files that the compiler has written beside the sources."""
    return [*SOURCE.glob("*__mypyc*.so"), *SOURCE.glob("svc/**/*.so")]


def current() -> bool:
    """Whether the compiled modules match the present sources."""
    return STAMP.exists() and STAMP.read_text() == digest() and len(compiled()) == len(sources()) + 1


def clean() -> None:
    """Remove the compiled modules."""
    for path in compiled():
        path.unlink()
    STAMP.unlink(missing_ok=True)


def can_compile() -> bool:
    """Whether a C compiler and Python's headers are available."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(compiler) is not None and Path(sysconfig.get_paths()["include"], "Python.h").exists()


def build() -> None:
    """Compile. Raises SystemExit on failure."""
    BUILD.mkdir(parents=True, exist_ok=True)
    stamp = digest()  # taken first, in case a source changes during the compilation
    os.chdir(SOURCE)  # mypyc names modules by their paths
    names = [str(path.relative_to(SOURCE)) for path in sources()]
    modules = mypycify([*OPTIONS, *names], opt_level="2", debug_level="0", target_dir=str(BUILD))
    folders = ["--build-base", str(BUILD), "--build-lib", str(BUILD / "lib")]
    arguments = ["--quiet", "build", *folders, "build_ext", "--inplace", "--build-temp", str(BUILD)]
    setup(name="svc-native", packages=[], ext_modules=modules, script_args=arguments)
    STAMP.write_text(stamp)


def main() -> int:
    """Run `clean`, `check` (exits with 1 if compiled modules are outdated), or compile what is outdated."""
    if sys.argv[1:] == ["clean"]:
        clean()
    elif sys.argv[1:] == ["check"]:
        return int(bool(compiled()) and not current())
    elif not can_compile():
        clean()
        print("no C compiler, or no Python headers: the gateway runs from source, at about half its speed")
    elif not current():
        clean()
        print("compiling the gateway's hot path; this takes a minute")
        build()
    return 0


if __name__ == "__main__":
    sys.exit(main())
