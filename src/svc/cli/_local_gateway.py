"""Files in the state folder with which `svc up` publishes its key and address to other commands.

$SVC_HOME/api_key        created once, mode 0600
$SVC_HOME/console_key    the key behind the console's login link, created once, mode 0600
$SVC_HOME/up.lock        flock of the running `svc up`, which the kernel releases at process exit
$SVC_HOME/gateway.lock   flock of `svc gateway`, of which several may run
$SVC_HOME/registry.lock  flock of all processes that use $SVC_HOME/registry, see `svc.stores.bundles.folder_use`
$SVC_HOME/gateway.json   {"url", "pid"} of the running `svc up`, ignored if no process has that pid
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
from svc.security import ISSUED_KEY_PREFIX, generate_secret
from svc.stores.state_dir import prepare_state_dir

DEFAULT_REGISTRY_PORT = 8080


@contextmanager
def hold_up_lock(home: Path) -> Iterator[None]:
    """Lock the state folder against other `svc up` processes. Raises UsageError with the address of the running one."""
    prepare_state_dir(home)
    file = os.open(home / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            url = find_gateway(home)
            state = f"running at {url}" if url else "starting"
            raise UsageError(
                f"`svc up` is already {state} with {home}. Stop it, or set SVC_HOME to another folder."
            ) from None
        yield
    finally:
        os.close(file)


@contextmanager
def hold_gateway_lock(home: Path) -> Iterator[bool]:
    """Mark the state folder as in use by `svc gateway`. Yields False if another gateway already uses it."""
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
    """Return this machine's API key, and create it if it is missing. Raises UsageError for an invalid file."""
    path = home / "api_key"
    _create_key_file(home, path)
    key = read_local_api_key(home)
    if key is None:
        raise UsageError(f"{path} does not contain an API key. Remove the file, and svc up creates a new one.")
    return key


def ensure_console_key(home: Path) -> str:
    """Return the key behind the console's login link, and create it if it is missing. Raises UsageError."""
    path = home / "console_key"
    _create_key_file(home, path)
    key = path.read_text(encoding="ascii", errors="replace").strip()
    if not key.startswith(ISSUED_KEY_PREFIX):
        raise UsageError(f"{path} does not contain a key. Remove the file, and svc up creates a new one.")
    return key


def _create_key_file(home: Path, path: Path) -> None:
    """Create a file with a new key, unless it exists."""
    prepare_state_dir(home)
    if not path.exists():
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(generate_secret() + "\n")
        with suppress(FileExistsError):  # another process created the key first: use its key
            os.link(temporary, path)  # atomic, and never overwrites an existing file
        temporary.unlink()
    path.chmod(0o600)


def write_gateway_record(home: Path, url: str) -> None:
    """Write the address of this process's gateway."""
    temporary = home / f"gateway.json.{os.getpid()}"
    temporary.write_text(json.dumps({"url": url, "pid": os.getpid()}), encoding="ascii")
    temporary.replace(home / "gateway.json")


def remove_gateway_record(home: Path) -> None:
    """Remove the record of this process."""
    if read_gateway_record(home)[1] == os.getpid():
        (home / "gateway.json").unlink(missing_ok=True)
