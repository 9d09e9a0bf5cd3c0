"""What svc run refuses, and how it says so: before the work is done, where that can be."""

from __future__ import annotations

import pytest
from tests.unit.pipeline.conftest import result, run

ONE = "name: one\nstages:\n  - {id: ask, target: integration, provider: openai, model: gpt-4o-mini}\n"


def test_a_provider_that_is_away_is_no_gateway(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROVIDER_A_API_KEY", "sk-a")
    monkeypatch.setenv("PROVIDER_A_BASE_URL", "http://127.0.0.1:9/v1")
    assert run(ONE, "--input", "Hi", "--json") == 1
    error = result(capsys)["error"]
    assert (error["stage"], error["code"]) == ("ask", "provider_error")
    assert error["message"].startswith("The provider at http://127.0.0.1:9/v1 cannot be reached")
