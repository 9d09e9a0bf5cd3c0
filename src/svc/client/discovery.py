"""Finds the gateway that `svc up` runs on this machine with the same SVC_HOME, and its API key.

$SVC_HOME/api_key       the key, mode 0600, sent only to this gateway
$SVC_HOME/gateway.json  {"url", "pid"} while `svc up` runs, ignored if no process has that pid
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

_API_KEY_PATTERN = re.compile(r"svc_sk_[A-Za-z0-9_-]{43}")


class _GatewayRecord(msgspec.Struct):
    url: str
    pid: int


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return `SVC_HOME`, else `~/.svc`. Not expanded if the user has no home folder."""
    path = Path(environ.get("SVC_HOME") or "~/.svc")
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def find_gateway(home: Path) -> str | None:
    """Return the URL, with `/v1`, of the gateway that `svc up` is running, or None."""
    url, pid = read_gateway_record(home)
    if pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass  # the process exists and belongs to another user
    return url


def read_local_api_key(home: Path) -> str | None:
    """Return the API key of this machine, or None if this user cannot read one."""
    try:
        text = (home / "api_key").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _API_KEY_PATTERN.fullmatch(text) else None


def read_gateway_record(home: Path) -> tuple[str, int]:
    """Return the URL and process id in `gateway.json`, or "" and 0."""
    try:
        record = msgspec.json.decode((home / "gateway.json").read_bytes(), type=_GatewayRecord)
    except (OSError, ValueError):
        return "", 0
    return record.url, record.pid
