"""Asks genai-prices for the prices of some models, through `pricebook`, and keeps the answer for a day."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import msgspec

from svc.environment import child_environment
from svc.gateway.price import Price

log = logging.getLogger("svc.ledger")

SECONDS = 30.0
"""The process may take so long."""
DAY = 86400.0

Wanted = tuple[str, str, str, str]
Found = dict[tuple[str, str], Price]
_rows = msgspec.json.Decoder(list[tuple[str, str, Price]])


async def fetch(wanted: list[Wanted], folder: Path, learn: Callable[[Found], None]) -> None:
    """Tells the prices that are known: kept ones at once, and new ones when those are old.

    None are told when the package is missing or fails, which is logged.
    """
    path = await asyncio.to_thread(_path, wanted, folder)
    text, age = await asyncio.to_thread(_kept, path)
    if text is not None:
        learn(_found(text))
    if text is None or age > DAY:
        text = await _asked(wanted)
        learn(_found(text or b"[]"))
        if text is not None:
            await asyncio.to_thread(_keep, path, text)


def _found(text: bytes) -> Found:
    return {(provider, model): price for provider, model, price in _rows.decode(text)}


async def _asked(wanted: list[Wanted]) -> bytes | None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "svc.gateway.pricebook",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=child_environment(),
    )
    try:
        async with asyncio.timeout(SECONDS):
            text, _ = await process.communicate(msgspec.json.encode(wanted))
            _rows.decode(text)
    except (TimeoutError, msgspec.MsgspecError):
        log.warning("there is no price list: costs are unknown where configuration gives no price")
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return text


def _path(wanted: list[Wanted], folder: Path) -> Path:
    try:
        version = metadata.version("genai-prices")
    except metadata.PackageNotFoundError:
        version = "none"
    asked = hashlib.sha256(msgspec.json.encode([version, wanted])).hexdigest()[:16]
    return folder / f"prices-{asked}.json"


def _kept(path: Path) -> tuple[bytes | None, float]:
    """What was kept, if it can be read, and its age in seconds."""
    try:
        text, age = path.read_bytes(), time.time() - path.stat().st_mtime
        _rows.decode(text)
    except (OSError, msgspec.MsgspecError):
        return None, 0.0
    return text, age


def _keep(path: Path, text: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob("prices-*.json"):
            old.unlink(missing_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(text)
        part.replace(path)
    except OSError as error:
        log.warning("the price list cannot be kept: %s", error)
