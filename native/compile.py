"""Compiles the hot path with mypyc: the same source, as extension modules beside it. `make native`, `make pure`.

    python native/compile.py              compile what is outdated, and install it
    python native/compile.py install      install the last compilation if it is of the present sources, else remove the
                                          installed modules, and compile in the background
    python native/compile.py check        exit with 1 if the installed modules are outdated
    python native/compile.py clean        remove the installed modules

A compilation takes minutes, and its result is installed as a whole. Without a C compiler or Python's headers, nothing
is compiled and the gateway runs from source. It is slower then, and otherwise the same. Python imports an installed
module as long as it exists, even after its source has changed.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
BUILD = ROOT / "build" / "native"
STAMP = BUILD / "sha256"
"""The digest of the sources of the installed modules."""
READY = BUILD / "ready"
"""The last complete compilation."""
FAILED = BUILD / "failed"
"""The digest of the sources of a failed compilation, which is not repeated in the background."""
LOCK = BUILD / "lock"
LOG = BUILD / "log"
"""The output of the last compilation in the background."""
LISTED = Path(__file__).with_name("modules.txt")
C_MACHINES = ("x86_64", "amd64", "aarch64", "arm64")
"""Machines with the vector instructions of the modules in C. The gateway runs without these modules on others."""
MAX_32_BIT_SIZE = 2**31 - 1
"""The modules in C need a 64-bit Python, which such a machine may not have."""
OPTIONS = (
    *("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(BUILD / "types")),
    *("--ignore-missing-imports", "--no-warn-unused-ignores", "--no-warn-return-any", "--allow-subclassing-any"),
)
"""Options of mypyc. The types of an extra that is not installed are Any, which `make lint` would reject."""

NO_WARNINGS = "-Wno-all"
"""Disables gcc's `-Wall`, which Python's build flags set. On 130 MB of generated C, its checks take longer than the
compilation."""


def listed_sources() -> list[Path]:
    """Return the listed modules. Raises SystemExit for a name that is missing, listed twice, or cannot be compiled."""
    names = [line for line in LISTED.read_text().splitlines() if line and not line.startswith("#")]
    paths = [SOURCE / "svc" / name for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.is_file():
            raise SystemExit(f"{LISTED.name}: {name}: there is no such file below src/svc")
        if names.count(name) > 1:
            raise SystemExit(f"{LISTED.name}: {name} is listed twice")
        if path.suffix == ".py" and "(msgspec.Struct" in path.read_text():
            raise SystemExit(
                f"{LISTED.name}: {name} cannot be compiled: msgspec reads annotations that compiling changes"
            )
    has_vectors = platform.machine() in C_MACHINES and sys.maxsize > MAX_32_BIT_SIZE
    return sorted(path for path in paths if path.suffix == ".py" or has_vectors)


def sources_with_imports() -> list[Path]:
    """Return the listed modules with headers and transitive imports of svc, whose constants are compiled in."""
    found: set[Path] = set()
    waiting = listed_sources()
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path) if path.suffix == ".py" else _header_and_stub(path)
    return sorted(found)


def _imported(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("svc"):
            place = SOURCE.joinpath(*node.module.split("."))
            names = [place.with_suffix(".py"), *(place / f"{name.name}.py" for name in node.names)]
            yield from (name for name in names if name.is_file())


def _header_and_stub(path: Path) -> list[Path]:
    """Return the files beside a module in C. Modules may include headers only of listed modules."""
    return [file for suffix in (".h", ".pyi") if (file := path.with_suffix(suffix)).is_file()]


def digest() -> str:
    """Return a digest of everything that affects the compiled code."""
    sha = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()} {importlib.metadata.version('mypy')}".encode())
    for path in (Path(__file__), LISTED, ROOT / "pyproject.toml", *sources_with_imports()):
        sha.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return sha.hexdigest()


def installed_modules() -> list[Path]:
    """Return the files that the compiler has written beside the sources."""
    return [*SOURCE.glob("*__mypyc*.so"), *SOURCE.glob("svc/**/*.so")]


def is_current() -> bool:
    """Return whether the installed modules match the present sources."""
    return STAMP.exists() and STAMP.read_text() == digest() and len(installed_modules()) == len(listed_sources()) + 1


def clean() -> None:
    """Remove the installed modules."""
    for path in installed_modules():
        path.unlink()
    STAMP.unlink(missing_ok=True)


def can_compile() -> bool:
    """Return whether a C compiler and Python's headers are available."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(compiler) is not None and Path(sysconfig.get_paths()["include"], "Python.h").exists()


@contextlib.contextmanager
def hold_lock(*, wait: bool) -> Iterator[bool]:
    """Hold the lock of the compilation. Yields False if another process holds it and `wait` is False."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def build() -> None:
    """Compile to READY, which appears when it is complete. Raises SystemExit on failure."""
    from mypyc.build import mypycify  # noqa: PLC0415 slow, and only needed here
    from setuptools import Extension, setup  # noqa: PLC0415

    stamp = digest()  # taken first, in case a source changes during the compilation
    new = BUILD / "new"
    for outdated in (new, READY):
        shutil.rmtree(outdated, ignore_errors=True)
    os.chdir(SOURCE)  # mypyc names modules by their paths
    sources = [path.relative_to(SOURCE) for path in listed_sources()]
    names = [str(path) for path in sources if path.suffix == ".py"]
    modules = mypycify([*OPTIONS, *names], opt_level="2", debug_level="0", target_dir=str(BUILD))
    for module in modules:
        module.extra_compile_args = [*module.extra_compile_args, NO_WARNINGS]  # mypycify gives all the same list
    for path in sources:
        if path.suffix == ".c":
            modules.append(Extension(".".join(path.with_suffix("").parts), [str(path)], extra_compile_args=["-O2"]))
    arguments = ["--quiet", "build_ext", "--build-lib", str(new), "--build-temp", str(BUILD / "objects")]
    setup(name="svc-native", packages=[], ext_modules=modules, script_args=arguments)
    (new / STAMP.name).write_text(stamp)
    new.rename(READY)


def is_ready() -> bool:
    """Whether there is a complete compilation of the present sources."""
    stamp = READY / STAMP.name
    return stamp.exists() and stamp.read_text() == digest()


def install() -> None:
    """Copy the modules of READY beside their sources. The stamp is last, so that an interrupted copy is outdated."""
    clean()
    partial = BUILD / "partial"
    for path in READY.rglob("*.so"):
        shutil.copyfile(path, partial)
        partial.chmod(0o755)
        partial.replace(SOURCE / path.relative_to(READY))
    STAMP.write_text(digest())


def compile_now() -> None:
    """Compile what is outdated, and install it. Waits for a compilation in the background."""
    with hold_lock(wait=True):
        if not is_ready():
            print("compiling the hot path; this takes two to four minutes", flush=True)
            build()
        install()


def install_or_compile_later() -> None:
    """Install a compilation of the present sources, or start one in the background. Takes no time."""
    if is_ready():
        install()
        return
    clean()
    if FAILED.exists() and FAILED.read_text() == digest() and not _is_compiling():
        print(f"running from source, at about half the speed: compiling failed. See {LOG}, then run: make native")
        return
    print("running from source; the hot path is compiled in the background for the next start", flush=True)
    if not _is_compiling():
        with LOG.open("wb") as log:
            subprocess.Popen(
                [sys.executable, __file__, "background"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip


def compile_in_background() -> None:
    """Compile at the lowest priority, unless another process compiles."""
    os.nice(19)
    with hold_lock(wait=False) as is_first:
        if is_first and not is_ready():
            try:
                build()
            except BaseException:  # mypyc and setuptools end the process after an error
                FAILED.write_text(digest())
                raise


def _is_compiling() -> bool:
    with hold_lock(wait=False) as is_free:
        return not is_free


def main() -> int:
    """Run the command of the first argument."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "clean":
        clean()
    elif command == "check":
        return int(bool(installed_modules()) and not is_current())
    elif command == "background":
        compile_in_background()
    elif not can_compile():
        clean()
        print("no C compiler, or no Python headers: the gateway runs from source, at about half its speed")
    elif is_current():
        return 0
    elif command == "install":
        install_or_compile_later()
    else:
        compile_now()
    return 0


if __name__ == "__main__":
    sys.exit(main())
