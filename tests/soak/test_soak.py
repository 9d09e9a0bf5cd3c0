"""A short soak run. `make soak` runs the long one."""

from pathlib import Path

import pytest

from tests.soak.running import soaking

pytestmark = pytest.mark.slow


def test_gateway_after_soak_leaks_nothing(tmp_path: Path) -> None:
    with soaking(tmp_path) as soak:
        report = soak.run(8, 60)
    assert report.sent == 8 * 60 + 1
    assert not report.wrong, str(report)
    assert report.unaccounted == 0, str(report)
    assert report.descriptors[1] <= report.descriptors[0] + 4, str(report)  # some sockets may still be closing
    assert report.threads[1] <= report.threads[0], str(report)
    assert report.tasks[1] <= report.tasks[0], str(report)
    assert report.rss[-1] < report.rss[0] + 64 * 1024 * 1024, str(report)  # some faults are responses of 10 MB
