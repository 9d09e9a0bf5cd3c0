"""The gateway that `svc up` runs on this machine with the same SVC_HOME: its address, and the key that goes only there.

$SVC_HOME/api_key       the key, readable by its owner alone
$SVC_HOME/gateway.json  {"url", "pid"} while `svc up` runs; a file that a killed process left behind is ignored
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
    """`SVC_HOME`, else `~/.svc`; unexpanded where the user has no home folder."""
    path = Path(environ.get("SVC_HOME") or "~/.svc")
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def find_gateway(home: Path) -> str | None:
    """Return the address, with `/v1`, of the gateway that `svc up` runs now; None if it does not run."""
    url, pid = read_gateway_record(home)
    if pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass  # it lives, and is somebody else's
    return url


def read_local_api_key(home: Path) -> str | None:
    """Return the API key of this machine, if there is one that this user can read."""
    try:
        text = (home / "api_key").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _API_KEY_PATTERN.fullmatch(text) else None


def read_gateway_record(home: Path) -> tuple[str, int]:
    """Return address and process id of `gateway.json`, "" and 0 if there is none."""
    try:
        record = msgspec.json.decode((home / "gateway.json").read_bytes(), type=_GatewayRecord)
    except (OSError, ValueError):
        return "", 0
    return record.url, record.pid
