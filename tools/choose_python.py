"""Prints the interpreter for the environment of `make run` and `make test`: python3, or an optimised one of the system.

    python3 tools/choose_python.py

pyenv and others build CPython without profile-guided optimisation unless told otherwise. A request then needs about a
fifth more CPU. Such a `python3` gives way to the system's Python, if that can create environments, and can compile the
hot path if `python3` can. If neither is usable, `python3` is printed, and the Makefile says what is missing.
"""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

OWN = "python3"
SYSTEM = "/usr/bin/python3"
TIMEOUT_S = 20

# Debian optimises its Python in ways that its configuration does not name, so a Python in /usr counts as optimised.
PROBE = """
import importlib.util as find, os, sys, sysconfig
print(
    sys.executable,
    "%d.%d.%d" % sys.version_info[:3],
    int(sys.version_info >= (3, 11) and bool(find.find_spec("venv") and find.find_spec("ensurepip"))),
    int(os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))),
    int(sys.base_prefix == "/usr" or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")),
    sep="\\t",
)
"""
"""Prints path, version, whether it creates environments, whether it has C headers, and whether it is optimised."""


class Interpreter(NamedTuple):
    """What a candidate says of itself."""

    path: str
    version: str
    is_usable: bool
    has_headers: bool
    is_optimized: bool


def inspect(candidate: str) -> Interpreter | None:
    """Return None for a candidate that does not exist or does not run."""
    try:
        run = subprocess.run(
            [candidate, "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
        path, version, *facts = run.stdout.strip().split("\t")
        is_usable, has_headers, is_optimized = (fact == "1" for fact in facts)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(path, version, is_usable, has_headers, is_optimized)


def choose(own: Interpreter | None, system: Interpreter | None) -> Interpreter | None:
    """Return the interpreter to use, or None if none is usable."""
    if system is None or not system.is_usable:
        return own if own is not None and own.is_usable else None
    if own is None or not own.is_usable:
        return system
    is_better = system.is_optimized and not own.is_optimized and (system.has_headers or not own.has_headers)
    return system if is_better else own


def main() -> None:
    """Print the path, and to standard error the reason if it is the system's."""
    own = inspect(OWN)
    chosen = choose(own, inspect(SYSTEM))
    if chosen is None:
        print(OWN)
        return
    if own is not None and chosen != own:
        reason = "was built without optimisations" if own.is_usable else "is too old, or has no venv"
        print(f"using {chosen.path} ({chosen.version}): {own.path} ({own.version}) {reason}", file=sys.stderr)
        print("to use another one, set PYTHON, for example: make PYTHON=python3 run", file=sys.stderr)
    print(chosen.path)


if __name__ == "__main__":
    main()
