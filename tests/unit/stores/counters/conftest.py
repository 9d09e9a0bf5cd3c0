"""The clock of the tests of counters."""

from __future__ import annotations

import pytest
from tests.fakes.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
