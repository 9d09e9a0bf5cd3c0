"""What the explanation of a slow request says about a new connection."""

from __future__ import annotations

import pytest
from tests.contracts.test_database import make_entry

from svc.gateway.observability.explanation import explain_entry
from svc.stores.database.base import AttemptDetail


@pytest.mark.parametrize(("connect_ms", "is_named"), [(None, False), (40.0, False), (800.0, True)])
def test_explain_entry_slow_connection_is_named(connect_ms: float | None, is_named: bool) -> None:
    attempt = AttemptDetail(provider="p", model="m", outcome="ok", ms=1000.0, connect_ms=connect_ms)
    entry = make_entry("req_1", latency_ms=1010.0, ttfb_ms=1000.0, attempts_detail=[attempt])
    explanation = explain_entry(entry, [attempt], None)
    assert "until the first byte" in explanation.why
    assert ("A new connection took 800 ms of that." in explanation.why) is is_named
    assert explanation.action.startswith("Check DNS") is is_named
