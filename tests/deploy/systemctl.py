#!/usr/bin/env python3
"""Stands in for `systemctl` in a root without systemd: starts what `ExecStart` of a unit says, as its user.

Understands what the guides use: daemon-reload, enable [--now], start, restart, reload and stop. It does not apply the
hardening of a unit. It runs in the root, so it imports only the standard library.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path("/run/services")
"""A file with the process id of each service."""
FOLDERS = (Path("/etc/systemd/system"), Path("/lib/systemd/system"))
STOP_SECONDS = 60


class Unit:
    """The settings of a unit file. A setting that occurs repeatedly has several values."""

    def __init__(self, name: str) -> None:
        self.name = name
        template, _, self.instance = name.partition("@")
        file_name = f"{template}@.service" if self.instance else f"{name}.service"
        path = next((folder / file_name for folder in FOLDERS if (folder / file_name).exists()), None)
        if path is None:
            sys.exit(f"Unit {name}.service could not be found.")
        self._settings: dict[str, list[str]] = {}
        for line in path.read_text().replace("\\\n", " ").splitlines():
            key, is_setting, value = line.partition("=")
            if is_setting and not key.startswith("#"):
                self._settings.setdefault(key.strip(), []).append(value.strip().replace("%i", self.instance))

    def all(self, key: str) -> list[str]:
        return self._settings.get(key, [])

    def one(self, key: str, default: str = "") -> str:
        return (self.all(key) or [default])[-1]

    def environment(self) -> dict[str, str]:
        found = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        lines = [word for value in self.all("Environment") for word in shlex.split(value)]
        for file in self.all("EnvironmentFile"):
            path = Path(file.removeprefix("-"))
            if path.exists():
                lines += [line for line in path.read_text().splitlines() if re.match(r"\w+=", line)]
            elif not file.startswith("-"):
                sys.exit(f"{path} is missing")
        for line in lines:
            name, _, value = line.partition("=")
            found[name] = "".join(shlex.split(value)) if value[:1] in "\"'" else value
        return found

    def command(self, key: str, environment: dict[str, str]) -> list[str]:
        """Return a command with its variables. A word that is only a variable becomes several words."""
        words: list[str] = []
        for word in shlex.split(self.one(key).lstrip("-+!@")):
            match = re.fullmatch(r"\$(\w+)", word)
            words += shlex.split(environment.get(match[1], "")) if match else [word]
        return words


def start(name: str) -> None:
    unit = Unit(name)
    environment = unit.environment()
    user = pwd.getpwnam(unit.one("User", "root"))
    for key, parent in (("RuntimeDirectory", "/run"), ("StateDirectory", "/var/lib"), ("LogsDirectory", "/var/log")):
        for folder in unit.one(key).split():
            path = Path(parent, folder)
            path.mkdir(parents=True, exist_ok=True)
            os.chown(path, user.pw_uid, user.pw_gid)
    if unit.all("ExecStartPre"):
        subprocess.run(unit.command("ExecStartPre", environment), check=True)
    with Path(f"/var/log/{name}.log").open("ab") as log:
        process = subprocess.Popen(
            unit.command("ExecStart", environment),
            env=environment,
            cwd="/",
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if unit.one("Type", "simple") in ("forking", "oneshot"):
        if process.wait(STOP_SECONDS):
            sys.exit(f"{name} failed with status {process.returncode}")
        pid = Path(unit.one("PIDFile") or "/nonexistent")
        process_id = int(pid.read_text()) if pid.exists() else 0
    else:
        process_id = process.pid
    STATE.mkdir(exist_ok=True)
    (STATE / name).write_text(str(process_id))


def running(name: str) -> int:
    """Return the process id of a service that runs, or 0."""
    path = STATE / name
    process_id = int(path.read_text()) if path.exists() else 0
    return process_id if process_id and Path(f"/proc/{process_id}/cmdline").exists() and _has_command(process_id) else 0


def _has_command(process_id: int) -> bool:
    """Return false for a process that has ended and was not awaited."""
    return bool(Path(f"/proc/{process_id}/cmdline").read_bytes())


def stop(name: str) -> None:
    process_id = running(name)
    if not process_id:
        return
    os.kill(process_id, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while running(name):
        if time.monotonic() > deadline:
            sys.exit(f"{name} did not stop")
        time.sleep(0.05)


def reload(name: str) -> None:
    environment = {**Unit(name).environment(), "MAINPID": str(running(name))}
    subprocess.run(Unit(name).command("ExecReload", environment), env=environment, check=True)


def services(names: list[str]) -> list[str]:
    """Return the units. That of PostgreSQL stands for one unit for each cluster."""
    found: list[str] = []
    for name in names:
        if name == "postgresql":
            clusters = Path("/etc/postgresql").glob("*/*")
            found += [f"postgresql@{path.parent.name}-{path.name}" for path in sorted(clusters)]
        else:
            found.append(name.removesuffix(".service"))
    return found


def main() -> None:
    command, *arguments = sys.argv[1:]
    names = services([argument for argument in arguments if not argument.startswith("-")])
    for name in names:
        if command == "start" or (command == "enable" and "--now" in arguments):
            if not running(name):
                start(name)
        elif command == "restart":
            stop(name)
            start(name)
        elif command == "stop":
            stop(name)
        elif command == "reload":
            reload(name)
        elif command == "enable":
            Unit(name)
        else:
            sys.exit(f"unknown command: {command}")
    if not names and command != "daemon-reload":
        sys.exit(f"unknown command: {command}")


if __name__ == "__main__":
    main()
