"""Child processes in /proc, their signals, and the secrets that parsers must not have. Linux only."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

SECRETS = {
    "OPENAI_API_KEY": "secret-1",
    "MY_VENDOR_TOKEN": "secret-2",
    "PROVIDER_C_API_KEY": "secret-3",
    "SVC_REGISTRY_KEYS": "secret-4",
    "SVC_OCI_PASSWORD": "secret-5",
    "AWS_SECRET_ACCESS_KEY": "secret-6",
    "PGPASSWORD": "secret-7",
    "HF_TOKEN": "secret-8",
    "LLAMA_API_KEY": "secret-9",
    "MY_DATABASE_URL": "postgresql://user:secret-10@host/name",
}


def restore_interrupts() -> None:
    """Restore SIGINT for child processes: a background job of a shell inherits an ignored SIGINT."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def parent_of(pid: int) -> int | None:
    """Return the id of a process's parent, or None if there is no such process. Zombies have a parent."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return None


def children(parent: int, module: str) -> list[int]:
    """Return the ids of a process's children that run `python -m module`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            of = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if of == parent and module.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def child(parent: int, module: str, timeout: float = 60) -> int:
    """Wait for the only child that runs a module and return its id."""
    deadline = time.monotonic() + timeout
    while not (found := children(parent, module)):
        assert time.monotonic() < deadline, f"no {module} below {parent}"
        time.sleep(0.05)
    (one,) = found
    return one


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if pair)
