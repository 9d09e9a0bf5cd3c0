"""Prices: known at once for the built-in models, and no other than those of genai-prices."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from svc import settings
from svc.gateway.accounting import price_list
from svc.gateway.accounting.cost import PriceTable
from svc.gateway.accounting.price import Price
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.providers import build_providers

KEYS = {f"PROVIDER_{letter}_API_KEY": "k" for letter in "ABC"}
CUSTOM = """
[[providers]]
name = "mine"
base_url = "http://127.0.0.1:1/v1"
models = [{ id = "m" }, { id = "n", input_price = 1, output_price = 2 }]
"""


def offers(tmp_path: Path, text: str = "") -> list[Backend]:
    (tmp_path / "svc.toml").write_text(text)
    found = build_providers(settings.load(KEYS, config=str(tmp_path / "svc.toml")))
    return [offer for provider in found for offer in build_backends(provider)]


def test_nothing_waits_for_the_price_list(tmp_path: Path) -> None:
    prices = PriceTable(offers(tmp_path))
    assert prices.is_complete
    assert prices.get("openai", "gpt-4o-mini") is not None


def test_what_is_shipped_is_what_genai_prices_says(tmp_path: Path) -> None:
    prices = PriceTable(offers(tmp_path))
    asked = msgspec.json.encode(prices.price_lookups)
    told = subprocess.run(
        [sys.executable, "-m", "svc.gateway.accounting.price_lookup"], input=asked, capture_output=True, check=True
    )
    rows = msgspec.json.decode(told.stdout, type=list[tuple[str, str, Price]])
    assert len(rows) == 11
    assert {(name, model): prices.get(name, model) for name, model, _ in rows} == {row[:2]: row[2] for row in rows}


def test_the_configuration_has_the_last_word(tmp_path: Path) -> None:
    prices = PriceTable(offers(tmp_path, CUSTOM))
    assert not prices.is_complete
    prices.add_fetched_prices(
        {("mine", "n"): Price(7, 7), ("mine", "m"): Price(3, 3), ("openai", "gpt-4o"): Price(4, 4)}
    )
    assert prices.is_complete
    assert [prices.get("mine", "n"), prices.get("mine", "m")] == [Price(1, 2), Price(3, 3)]
    assert prices.get("openai", "gpt-4o") == Price(4, 4)


def test_an_old_list_is_used_until_there_is_a_new_one(tmp_path: Path) -> None:
    wanted = PriceTable(offers(tmp_path)).price_lookups
    told: list[price_list.FoundPrices] = []
    asyncio.run(price_list.fetch_prices(wanted, tmp_path, told.append))
    assert len(told) == 1
    (kept,) = tmp_path.glob("prices-*.json")
    os.utime(kept, (1, 1))
    asyncio.run(price_list.fetch_prices(wanted, tmp_path, told.append))
    asyncio.run(price_list.fetch_prices(wanted, tmp_path, told.append))
    assert len(told) == 4
    assert told[0] == told[1] == told[2] == told[3]


def test_prices_of_a_backend_are_those_of_its_provider_and_model(tmp_path: Path) -> None:
    found = offers(tmp_path, CUSTOM)
    prices = PriceTable(found)
    (priced,) = [offer for offer in found if offer.model_id == "n"]
    (unpriced,) = [offer for offer in found if offer.model_id == "m"]
    assert prices.get_for_backend(priced) == prices.get_for_backend(priced) == Price(1, 2)
    assert prices.get_for_backend(unpriced) is None
    prices.add_fetched_prices({("mine", "m"): Price(3, 3)})
    assert prices.get_for_backend(unpriced) == Price(3, 3)
