"""What `svc up` leaves in the state folder, so that other commands of the same person find it. No verb.

$SVC_HOME/api_key        made once, for its owner's eyes alone
$SVC_HOME/up.lock        held (flock) while it runs; the kernel lets go of it however the process ends
$SVC_HOME/gateway.lock  the same of `svc gateway`, of which there may be more
$SVC_HOME/gateway.json   {"url", "pid"} while it runs; what a killed process left behind is not believed
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from svc.client.discovery import find_gateway as find_gateway
from svc.client.discovery import read_gateway_record
from svc.client.discovery import read_local_api_key as read_local_api_key
from svc.errors import UsageError
from svc.security import generate_secret
from svc.stores.state_dir import prepare_state_dir

DEFAULT_REGISTRY_PORT = 8080


@contextmanager
def hold_up_lock(home: Path) -> Iterator[None]:
    """While the context is, no other `svc up` uses the state folder. Raises UsageError that names the one that does."""
    prepare_state_dir(home)
    file = os.open(home / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            url = find_gateway(home)
            state = f"runs at {url} already" if url else "is starting already"
            raise UsageError(f"svc up {state} with {home}: stop it, or set SVC_HOME to another folder.") from None
        yield
    finally:
        os.close(file)


@contextmanager
def hold_gateway_lock(home: Path) -> Iterator[bool]:
    """While the context is, the state folder is known to be used; false when another gateway uses it already."""
    prepare_state_dir(home)
    file = os.open(home / "gateway.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_only_gateway = find_gateway(home) is None
        except BlockingIOError:
            is_only_gateway = False
        yield is_only_gateway
    finally:
        os.close(file)


def ensure_api_key(home: Path) -> str:
    """The API key of this machine, made when there is none yet. Raises UsageError when the file holds none."""
    path = home / "api_key"
    prepare_state_dir(home)
    if not path.exists():
        temporary = home / f"api_key.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(generate_secret() + "\n")
        with suppress(FileExistsError):  # another one was first: theirs it is
            os.link(temporary, path)  # whole or not at all, and never over one that is there
        temporary.unlink()
    path.chmod(0o600)
    key = read_local_api_key(home)
    if key is None:
        raise UsageError(f"{path} holds no API key; remove it, and a new one is made.")
    return key


def write_gateway_record(home: Path, url: str) -> None:
    """Says where the gateway of this process is."""
    temporary = home / f"gateway.json.{os.getpid()}"
    temporary.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="ascii")
    temporary.replace(home / "gateway.json")


def remove_gateway_record(home: Path) -> None:
    """Takes back what this process said."""
    if read_gateway_record(home)[1] == os.getpid():
        (home / "gateway.json").unlink(missing_ok=True)
