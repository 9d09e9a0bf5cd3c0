"""Fetches the prices of models from genai-prices, through `price_lookup`, and caches them for a day."""

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

from svc.gateway.accounting.price import Price
from svc.subprocess_env import build_subprocess_env

log = logging.getLogger("svc.ledger")

PRICE_LOOKUP_TIMEOUT_SECONDS = 30.0
"""The timeout of the lookup process, in seconds."""
PRICE_LIST_MAX_AGE_SECONDS = 86400.0
NO_PRICE_LIST = "the price list is not available: costs are unknown for models without a configured price"

PriceLookup = tuple[str, str, str, str]
FoundPrices = dict[tuple[str, str], Price]
_rows_decoder = msgspec.json.Decoder(list[tuple[str, str, Price]])


def load_cached_prices(folder: Path) -> FoundPrices:
    """Return the prices that a gateway has cached in a folder, or none."""
    prices: FoundPrices = {}
    for path in sorted(folder.glob("prices-*.json")):
        text, _ = _read_cached(path)
        prices |= _decode_prices(text or b"[]")
    return prices


async def fetch_prices(lookups: list[PriceLookup], folder: Path, add_prices: Callable[[FoundPrices], None]) -> None:
    """Pass the known prices to `add_prices`: cached ones at once, and fetched ones if the cache is outdated.

    If the package is missing or fails, log a warning and pass no prices.
    """
    path = await asyncio.to_thread(_cache_path, lookups, folder)
    text, age = await asyncio.to_thread(_read_cached, path)
    if text is not None:
        add_prices(_decode_prices(text))
    if text is None or age > PRICE_LIST_MAX_AGE_SECONDS:
        text = await _run_lookup(lookups)
        add_prices(_decode_prices(text or b"[]"))
        if text is not None:
            await asyncio.to_thread(_write_cache, path, text)


def _decode_prices(text: bytes) -> FoundPrices:
    return {(provider, model): price for provider, model, price in _rows_decoder.decode(text)}


async def _run_lookup(lookups: list[PriceLookup]) -> bytes | None:
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "svc.gateway.accounting.price_lookup",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=build_subprocess_env(),
        )
    except OSError as error:  # such as EMFILE
        log.warning("%s: %s", NO_PRICE_LIST, error)
        return None
    try:
        async with asyncio.timeout(PRICE_LOOKUP_TIMEOUT_SECONDS):
            text, _ = await process.communicate(msgspec.json.encode(lookups))
            _rows_decoder.decode(text)
    except (TimeoutError, msgspec.MsgspecError):
        log.warning(NO_PRICE_LIST)
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return text


def _cache_path(lookups: list[PriceLookup], folder: Path) -> Path:
    try:
        version = metadata.version("genai-prices")
    except metadata.PackageNotFoundError:
        version = "none"
    lookup_digest = hashlib.sha256(msgspec.json.encode([version, Price.__struct_fields__, lookups])).hexdigest()[:16]
    return folder / f"prices-{lookup_digest}.json"


def _read_cached(path: Path) -> tuple[bytes | None, float]:
    """Return the cached text, or None if it is missing or invalid, and its age in seconds."""
    try:
        text, age = path.read_bytes(), time.time() - path.stat().st_mtime
        _rows_decoder.decode(text)
    except (OSError, msgspec.MsgspecError):
        return None, 0.0
    return text, age


def _write_cache(path: Path, text: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for outdated_path in path.parent.glob("prices-*.json"):
            outdated_path.unlink(missing_ok=True)
        temporary_path = path.with_suffix(".part")
        temporary_path.write_bytes(text)
        temporary_path.replace(path)
    except OSError as error:
        log.warning("the price list cannot be saved: %s", error)
