"""Builds the distribution of the last commit into dist/: `make dist`.

    python release/build.py [--output DIR] [--work DIR] [--python PROGRAM]...

An sdist, a pure wheel, a wheel with the compiled hot path for each CPython, an SBOM and checksums. Two builds of one
commit on one machine give the same bytes: all times are that of the commit, all orders are fixed, and compiled modules
contain no path of the machine. `DIST_SIGN` is a shell command that signs the file `$1`, and runs for each file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from release import archives, sbom  # noqa: E402
from release.man_page import format_man_page  # noqa: E402

ENVIRONMENTS = ROOT / ".dist"
MIN_VERSION = (3, 11)
COMPILE_FLAGS = (
    "-g0 -ffile-prefix-map={source}=. -ffile-prefix-map={environment}=/venv -ffile-prefix-map={python}=/python"
)
"""Assertions contain the paths of their files."""
LINKER = "gcc -shared -Wl,--build-id=none -Wl,--strip-all"
"""Overrides Python's own linker flags, which may contain the folder of Python's libraries."""


class BuildFailed(Exception):
    """A step failed. The message says what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the results (default dist/)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "dist", help="folder of intermediate files")
    parser.add_argument("--python", action="append", help="a CPython to compile for; otherwise all that are found")
    parser.add_argument("--pure", action="store_true", help="compile nothing: sdist and pure wheel only")
    options = parser.parse_args()
    try:
        build(options.output.resolve(), options.work.resolve(), {} if options.pure else find_pythons(options.python))
    except BuildFailed as error:
        sys.stderr.write(f"the distribution was not built: {error}\n")
        return 1
    return 0


def build(output: Path, work: Path, pythons: dict[str, str]) -> None:
    """Build everything into `output`, which is replaced when all of it is complete."""
    commit, epoch = git("rev-parse", "HEAD").decode().strip(), read_commit_time()
    os.environ |= {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    shutil.rmtree(work, ignore_errors=True)
    results = work / "results"
    results.mkdir(parents=True)
    say("console, man page and sources")
    source = stage_source(work / "source", commit, epoch)
    say("sdist")
    sdist = archives.normalize_sdist(run_backend("build_sdist", source, work / "raw"), results, epoch)
    say("pure wheel")
    archives.unpack_tar(sdist, work / "unpacked")
    (unpacked,) = (work / "unpacked").iterdir()
    pure = archives.normalize_wheel(run_backend("build_wheel", unpacked, work / "raw"), results, epoch)
    for tag, python in pythons.items():
        say(f"compiled wheel for {tag}: minutes")
        compiled = compile_modules(tag, python, unpacked, work / tag)
        platform_wheel = archives.add_modules(pure, compiled, tag, work / "raw", epoch)
        archives.normalize_wheel(repair(platform_wheel, work / "repaired" / tag), results, epoch)
    version = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    (results / f"svc_gateway-{version}.cdx.json").write_bytes(sbom.build_sbom(source, commit, epoch))
    archives.write_checksums(results)
    sign(results)
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(results, output)
    for path in sorted(output.iterdir()):
        say(f"  {path.stat().st_size:>9,} {path.name}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def git(*arguments: str) -> bytes:
    completed = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True)
    if completed.returncode:
        raise BuildFailed(f"git {arguments[0]}: {completed.stderr.decode().strip()}")
    return completed.stdout


def read_commit_time() -> int:
    """Return SOURCE_DATE_EPOCH, or the time of the last commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))


def stage_source(target: Path, commit: str, epoch: int) -> Path:
    """Copy the sources of the last commit, with the console, the man page and the build facts."""
    if git("status", "--porcelain"):
        raise BuildFailed("there are uncommitted changes, and a distribution is that of a commit: commit or stash them")
    target.mkdir(parents=True)
    archive = target.with_suffix(".tar")
    git("archive", "--output", str(archive), commit)
    archives.unpack_tar(archive, target)
    run_command([sys.executable, str(ROOT / "console" / "build.py")], "the console")
    shutil.copytree(ROOT / "src" / "svc" / "console" / "static", target / "src" / "svc" / "console" / "static")
    (target / "man").mkdir()
    (target / "man" / "svc.1").write_text(format_man_page(epoch), encoding="utf-8")
    facts = {"commit": commit, "time": archives.format_time(epoch)}
    (target / "src" / "svc" / "build_info.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    return target


def run_backend(function: str, source: Path, output: Path) -> Path:
    """Call a function of the build backend, and return the archive that it wrote."""
    output.mkdir(parents=True, exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.{function}({str(output)!r}))"
    completed = run_command([sys.executable, "-c", code], function, cwd=source)
    return output / completed.strip().splitlines()[-1]


def find_pythons(programs: list[str] | None) -> dict[str, str]:
    """Return the program of each CPython with headers by its tag, such as `cp311`. Raises BuildFailed."""
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob("*/bin/python"))
    names = [f"python3.{minor}" for minor in range(MIN_VERSION[1], 30)]
    candidates = programs or [sys.executable, *filter(None, map(shutil.which, names)), *map(str, installed)]
    found: dict[str, str] = {}
    for program in candidates:
        if tag := read_tag(program):
            found.setdefault(tag, program)
        elif programs:
            raise BuildFailed(f"{program} is not a CPython 3.11 or newer with headers")
    if not found:
        raise BuildFailed("no CPython has headers: install python3-dev, or pass --pure")
    return dict(sorted(found.items()))


def read_tag(program: str) -> str | None:
    code = (
        "import sys, sysconfig, os; v = sys.version_info;"
        "ok = sys.implementation.name == 'cpython' and v >= (3, 11) and v.releaselevel == 'final'"
        " and not sysconfig.get_config_var('Py_GIL_DISABLED')"
        " and os.path.exists(os.path.join(sysconfig.get_paths()['include'], 'Python.h'));"
        "print(f'cp{v[0]}{v[1]}' if ok else '')"
    )
    try:
        completed = subprocess.run([program, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    return completed.stdout.strip() or None


def make_environment(python: str, name: str, lock: str) -> Path:
    """Return a virtual environment in .dist/ with the packages of a lock file."""
    folder, requirements = ENVIRONMENTS / name, ROOT / "release" / lock
    stamp = folder / lock
    if not stamp.is_file() or stamp.read_bytes() != requirements.read_bytes():
        shutil.rmtree(folder, ignore_errors=True)
        run_command([python, "-m", "venv", str(folder)], "a virtual environment")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_command(
            [*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(requirements)], f"the packages of {lock}"
        )
        shutil.copyfile(requirements, stamp)
    return folder / "bin"


def compile_modules(tag: str, python: str, unpacked: Path, source: Path) -> dict[str, bytes]:
    """Compile the hot path in a copy of the sources. Return the files, by their path in the wheel."""
    bin_folder = make_environment(python, tag, "build.lock")
    shutil.copytree(unpacked, source)
    command = [str(bin_folder / "python"), str(source / "native" / "compile.py")]
    prefix = run_command([command[0], "-c", "import sys; print(sys.base_prefix)"], "the folder of Python").strip()
    cflags = COMPILE_FLAGS.format(source=source, environment=bin_folder.parent, python=prefix)
    flags = {"CFLAGS": cflags, "LDSHARED": LINKER, "CC": "gcc"}
    with (source.parent / f"{tag}.log").open("wb") as log:
        completed = subprocess.run(command, check=False, stdout=log, stderr=log, env={**os.environ, **flags})
    modules = {str(path.relative_to(source / "src")): path.read_bytes() for path in (source / "src").rglob("*.so")}
    if completed.returncode or not modules:
        raise BuildFailed(f"the hot path does not compile for {tag}. See {log.name}")
    for name, content in modules.items():
        if any(str(path).encode() in content for path in (source.parent, ENVIRONMENTS, Path.home())):
            raise BuildFailed(f"{name} contains a path of this machine")
    return modules


def repair(wheel: Path, output: Path) -> Path:
    """Give a wheel the oldest manylinux tag that its symbols allow."""
    tools = make_environment(sys.executable, "tools", "tools.lock")
    path = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    run_command([str(tools / "auditwheel"), "repair", "--wheel-dir", str(output), str(wheel)], "auditwheel", env=path)
    (repaired,) = output.glob("*.whl")
    return repaired


def sign(folder: Path) -> None:
    if command := os.environ.get("DIST_SIGN"):
        for path in sorted(folder.iterdir()):
            run_command(["sh", "-c", command, "sign", path.name], f"DIST_SIGN for {path.name}", cwd=folder)


def run_command(
    command: Iterable[str],
    step: str,
    *,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> str:
    """Run a command, and return its output. Raises BuildFailed with the end of it."""
    completed = subprocess.run(list(command), check=False, cwd=cwd, env=env, text=True, capture_output=True)
    if completed.returncode:
        raise BuildFailed(f"{step}: {(completed.stderr + completed.stdout)[-2000:]}")
    return completed.stdout


if __name__ == "__main__":
    sys.exit(main())
