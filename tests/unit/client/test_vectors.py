"""The vectors in tests/vectors, which the TypeScript SDK runs too: what differs is a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from svc.bundles import reference
from svc.bundles.signature import check as check_signatures
from svc.client.address import resolve_gateway_url
from svc.client.http_session import error_from_response
from svc.client.retry import is_retryable, retry_delay
from svc.errors import InvalidBundle, InvalidRequest, RateLimited, UsageError
from svc.pipeline.definition import parse_pipeline
from svc.wire.bundle import BundleEntry
from svc.wire.sse import EventSplitter, event_data, event_name, split_events

VECTORS = Path(__file__).parent.parent.parent / "vectors"


def cases(name: str) -> list[Any]:
    found: list[Any] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return found


@pytest.mark.parametrize("case", cases("urls"), ids=str)
def test_vectors_urls_match(case: dict[str, Any]) -> None:
    warnings: list[str] = []
    arguments = (case["explicit"], case["configured"], case["environment"], warnings.append)
    if "error" in case:
        with pytest.raises(InvalidRequest) as caught:
            resolve_gateway_url(*arguments)
        assert caught.value.param == case["error"]
    else:
        assert resolve_gateway_url(*arguments) == case["url"]
        assert bool(warnings) == case["warns"]


@pytest.mark.parametrize("case", cases("errors"), ids=str)
def test_vectors_errors_match(case: dict[str, Any]) -> None:
    error = error_from_response(case["status"], case["headers"], case["body"].encode())
    assert (type(error).__name__, error.code) == (case["class"], case["code"])
    assert error.message == case.get("message", error.message)
    assert error.param == case.get("param")
    assert error.request_id == case.get("request_id")
    if isinstance(error, RateLimited):
        assert error.retry_after == case.get("retry_after", error.retry_after)


@pytest.mark.parametrize("case", cases("retries"), ids=str)
def test_vectors_retries_match(case: dict[str, Any]) -> None:
    assert is_retryable(case["status"], case["headers"]) == case["is_retryable"]
    for _ in range(20):
        delay = retry_delay(case["attempt"], case["headers"])
        if case["min_delay"] is None:
            assert delay is None
        else:
            assert delay is not None
            assert case["min_delay"] <= delay <= case["max_delay"]


@pytest.mark.parametrize("case", cases("events"), ids=str)
def test_vectors_events_match_for_every_chunk_size(case: dict[str, Any]) -> None:
    data = case["text"].encode()
    for size in {1, 2, 3, max(1, len(data))}:
        splitter = EventSplitter()
        events = [event for at in range(0, len(data), size) for event in splitter.feed(data[at : at + size])]
        events += split_events(splitter.flush())
        found = [(event_name(event), event_data(event)) for event in events]
        assert [
            {"name": name and name.decode(), "data": None if data is None else data.decode()} for name, data in found
        ] == case["events"]


@pytest.mark.parametrize("case", cases("references"), ids=str)
def test_vectors_references_match(case: dict[str, Any]) -> None:
    if "sorted" in case:
        assert reference.sort_versions(reversed(case["sorted"])) == case["sorted"]
        assert reference.newest_version(case["sorted"]) == case["newest"]
    elif "error" in case:
        with pytest.raises(InvalidRequest) as caught:
            reference.parse_reference(case["text"])
        assert caught.value.param == case["error"]
    elif "text" in case:
        parsed = reference.parse_reference(case["text"])
        assert (parsed.model_id, parsed.version) == (case["model_id"], case["version"])
    else:
        entries = msgspec.convert(case["entries"], list[BundleEntry])
        entry = reference.select_entry(reference.parse_reference(case["reference"]), entries, tuple(case["platforms"]))
        assert (entry and entry.key) == case["selected"]


@pytest.mark.parametrize("case", cases("signatures"), ids=str)
def test_vectors_signatures_match(case: dict[str, Any]) -> None:
    entry = msgspec.convert(case["entry"], BundleEntry)
    if case["is_valid"]:
        check_signatures(entry, case["trusted_keys"])
    else:
        with pytest.raises(InvalidBundle):
            check_signatures(entry, case["trusted_keys"])


@pytest.mark.parametrize("case", cases("stages"), ids=str)
def test_vectors_stages_match(case: dict[str, Any]) -> None:
    text = yaml.safe_dump({"name": "p", "stages": [case["stage"]]})
    if case.get("error"):
        with pytest.raises(UsageError):
            parse_pipeline(text)
    else:
        (stage,) = parse_pipeline(text).stages
        found = {"target": stage.target, "id": stage.id, "reference": stage.reference, "model": stage.model}
        expected = {name: case.get(name) for name in ("target", "id", "reference", "model", "provider")}
        assert {**found, "provider": stage.provider} == expected
