"""Prices: available at once for built-in models, and equal to those of genai-prices."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import genai_prices
import msgspec
import pytest

from svc import settings
from svc.gateway.accounting import price_list
from svc.gateway.accounting.cost import PriceTable, compute_token_cost, cost_terms
from svc.gateway.accounting.price import Price
from svc.gateway.routing.backends import Backend, build_backends
from svc.gateway.routing.providers import build_providers
from svc.wire.usage import TokenUsage

KEYS = {f"PROVIDER_{letter}_API_KEY": "k" for letter in "ABC"}
CUSTOM = """
[[providers]]
name = "mine"
base_url = "http://127.0.0.1:1/v1"
models = [{ id = "m" }, { id = "n", input_price = 1, output_price = 2 }]
"""


def load_backends(tmp_path: Path, text: str = "") -> list[Backend]:
    (tmp_path / "svc.toml").write_text(text)
    found = build_providers(settings.load(KEYS, config=str(tmp_path / "svc.toml")))
    return [backend for provider in found for backend in build_backends(provider)]


def test_price_table_built_in_models_are_complete_at_once(tmp_path: Path) -> None:
    prices = PriceTable(load_backends(tmp_path))
    assert prices.is_complete
    assert prices.get("openai", "gpt-4o-mini") is not None


def test_price_table_shipped_prices_equal_genai_prices(tmp_path: Path) -> None:
    prices = PriceTable(load_backends(tmp_path))
    lookups = msgspec.json.encode(prices.price_lookups)
    results = subprocess.run(
        [sys.executable, "-m", "svc.gateway.accounting.price_lookup"], input=lookups, capture_output=True, check=True
    )
    rows = msgspec.json.decode(results.stdout, type=list[tuple[str, str, Price]])
    assert len(rows) == 13
    assert {(name, model): prices.get(name, model) for name, model, _ in rows} == {row[:2]: row[2] for row in rows}


def test_price_table_configured_price_overrides_fetched_price(tmp_path: Path) -> None:
    prices = PriceTable(load_backends(tmp_path, CUSTOM))
    assert not prices.is_complete
    prices.add_fetched_prices(
        prices.price_lookups,
        {("mine", "n"): Price(7, 7), ("mine", "m"): Price(3, 3), ("openai", "gpt-4o"): Price(4, 4)},
    )
    assert prices.is_complete
    assert [prices.get("mine", "n"), prices.get("mine", "m")] == [Price(1, 2), Price(3, 3)]
    assert prices.get("openai", "gpt-4o") == Price(4, 4)


def test_price_table_reload_during_a_lookup_needs_another_lookup(tmp_path: Path) -> None:
    prices = PriceTable(load_backends(tmp_path))
    lookups = prices.price_lookups
    prices.replace_backends(load_backends(tmp_path, CUSTOM))
    prices.add_fetched_prices(lookups, {("openai", "gpt-4o"): Price(4, 4)})
    assert not prices.is_complete
    prices.add_fetched_prices(prices.price_lookups, {})
    assert prices.is_complete
    assert prices.get("openai", "gpt-4o") == Price(4, 4)


def test_fetch_prices_stale_list_is_used_until_refreshed(tmp_path: Path) -> None:
    lookups = PriceTable(load_backends(tmp_path)).price_lookups
    results: list[price_list.FoundPrices] = []
    asyncio.run(price_list.fetch_prices(lookups, tmp_path, results.append))
    assert len(results) == 1
    (kept,) = tmp_path.glob("prices-*.json")
    os.utime(kept, (1, 1))
    asyncio.run(price_list.fetch_prices(lookups, tmp_path, results.append))
    asyncio.run(price_list.fetch_prices(lookups, tmp_path, results.append))
    assert len(results) == 4
    assert results[0] == results[1] == results[2] == results[3]


def test_fetch_prices_process_that_does_not_start_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    results: list[price_list.FoundPrices] = []
    asyncio.run(price_list.fetch_prices([("mine", "m", "m", "http://127.0.0.1")], tmp_path, results.append))
    assert results == [{}]
    assert "the price list is not available" in caplog.text
    assert "No such file" in caplog.text


def test_price_table_backend_has_price_of_its_provider_and_model(tmp_path: Path) -> None:
    found = load_backends(tmp_path, CUSTOM)
    prices = PriceTable(found)
    (priced,) = [backend for backend in found if backend.model_id == "n"]
    (unpriced,) = [backend for backend in found if backend.model_id == "m"]
    assert prices.get_for_backend(priced) == prices.get_for_backend(priced) == Price(1, 2)
    assert prices.get_for_backend(unpriced) is None
    prices.add_fetched_prices(prices.price_lookups, {("mine", "m"): Price(3, 3)})
    assert prices.get_for_backend(unpriced) == Price(3, 3)


def test_price_of_a_request_is_added_to_that_of_its_tokens() -> None:
    """Perplexity's Sonar costs 12 USD per 1,000 requests beside its tokens."""
    lookups = msgspec.json.encode([("perplexity", "sonar", "sonar", "https://api.perplexity.ai")])
    results = subprocess.run(
        [sys.executable, "-m", "svc.gateway.accounting.price_lookup"], input=lookups, capture_output=True, check=True
    )
    ((_, _, price),) = msgspec.json.decode(results.stdout, type=list[tuple[str, str, Price]])
    usage = TokenUsage(1000, 500)
    expected = genai_prices.calc_price(
        genai_prices.Usage(input_tokens=1000, output_tokens=500), "sonar", provider_id="perplexity"
    )
    assert compute_token_cost(price, usage) == float(expected.total_price)
    assert cost_terms(price, usage)[-1] == ("requests", 1, price.requests)
