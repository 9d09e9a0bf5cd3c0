"""Refuses to build a distribution without the console. All metadata is in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

CONSOLE_PAGE = Path("src/svc/console/static/index.html")
MAN_PAGE = Path("man/svc.1")
"""`make dist` generates it. A wheel of a checkout has none."""


class BuildWithConsole(build_py):
    """Copies the package, which must contain the built pages. An editable installation can build them later."""

    def run(self) -> None:
        if not self.editable_mode and not CONSOLE_PAGE.is_file():
            raise SetupError(f"{CONSOLE_PAGE} is missing. Build the console first: python console/build.py")
        super().run()


data_files = [("share/man/man1", [str(MAN_PAGE)])] if MAN_PAGE.is_file() else []
# The guides copy these files from `share/svc` of the environment, so a server needs no clone of the repository.
data_files += [
    (f"share/svc/{folder}", sorted(str(path) for path in Path("deploy", folder).iterdir() if ".test." not in path.name))
    for folder in ("caddy", "grafana", "haproxy", "nginx", "prometheus", "systemd")
]
data_files.append(("share/svc/reference", ["docs/reference/errors.md"]))
data_files.append(("share/svc/how-to", sorted(map(str, Path("docs", "how-to").glob("*.md")))))
setup(cmdclass={"build_py": BuildWithConsole}, data_files=data_files)
