"""API keys of a gateway and their ledger entries, through the `svc` command."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests import fork_server


def run_svc(home: Path, *arguments: str) -> Any:
    environ = {**os.environ, "SVC_HOME": str(home)}
    result = fork_server.run_command(arguments, environ, Path.cwd())
    result.check_returncode()
    return json.loads(result.stdout)


def create_key(home: Path, name: str, *limits: str) -> dict[str, str]:
    made = run_svc(home, "keys", "create", "--name", name, "--json", *limits)
    return {"Authorization": f"Bearer {made['key']}"}


async def wait_for_entries(home: Path, name: str, count: int) -> list[dict[str, Any]]:
    """Wait until a key has at least `count` ledger entries and return them, oldest first."""
    for _ in range(100):
        found = [row for row in run_svc(home, "usage", "--json") if row["key_name"] == name]
        if len(found) >= count:
            break
        await asyncio.sleep(0.1)
    return found[::-1]
