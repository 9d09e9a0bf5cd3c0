"""Looks up prices in genai-prices. `price_list` runs it in a separate process, because that package needs much memory.

python -m svc.gateway.accounting.price_lookup  <stdin  [[provider, model, upstream model, address], …]
                                               >stdout [[provider, model, Price], …]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import genai_prices
import msgspec

from svc.gateway.accounting.price import Price

PRICE_NAMES: Final = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cached": "cache_read_mtok",
    "written": "cache_write_mtok",
    "written_1h": "cache_write_1h_mtok",
    "input_audio": "input_audio_mtok",
    "cached_audio": "cache_audio_read_mtok",
    "output_audio": "output_audio_mtok",
    "input_image": "input_image_mtok",
    "cached_image": "cache_image_read_mtok",
    "output_image": "output_image_mtok",
    "requests": "requests_kcount",
}
"""The fields of Price, and their names in genai-prices."""


def main() -> None:
    """Read lookups from standard input, and write the known prices to standard output."""
    lookups = msgspec.json.decode(sys.stdin.buffer.read(), type=list[tuple[str, str, str, str]])
    rows = [
        (provider, model, price)
        for provider, model, upstream_model, url in lookups
        for price in _find_price(provider, upstream_model, url)
    ]
    sys.stdout.buffer.write(msgspec.json.encode(rows))


def _find_price(provider: str, model: str, url: str) -> Iterator[Price]:
    usage = genai_prices.Usage(input_tokens=1, output_tokens=1)
    now = datetime.now(UTC)
    try:
        calculation = genai_prices.calc_price(usage, model, provider_id=provider, genai_request_timestamp=now)
    except LookupError:  # the name is unknown, so look for the address
        try:
            calculation = genai_prices.calc_price(usage, model, provider_api_url=url, genai_request_timestamp=now)
        except LookupError:
            return
    yield _convert_price(calculation.model_price)


def _convert_price(model_price: Any) -> Price:
    raw = {field: getattr(model_price, name, None) for field, name in PRICE_NAMES.items()}
    if raw["input"] is None:  # speech from text: the usage counts characters
        raw["input"] = getattr(model_price, "input_mchars", None)
    if raw["requests"] is not None:  # per thousand
        raw["requests"] *= 1000
    starts = sorted({tier.start for value in raw.values() for tier in getattr(value, "tiers", ())})
    tiers = tuple((start, Price(**_prices_at(raw, start))) for start in starts)
    return Price(**_prices_at(raw, 0), tiers=tiers)


def _prices_at(raw: dict[str, Any], start: int) -> dict[str, Any]:
    prices = {field: _price_at(value, start) for field, value in raw.items()}
    return {**prices, "input": prices["input"] or 0.0, "output": prices["output"] or 0.0}


def _price_at(value: Any, start: int) -> float | None:
    """Return the price for prompts of more than `start` tokens."""
    if value is None:
        return None
    base = getattr(value, "base", value)
    for tier in getattr(value, "tiers", ()):
        if tier.start <= start:
            base = tier.price
    return float(base)


if __name__ == "__main__":
    main()
