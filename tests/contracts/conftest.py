"""Every Database and Counters, each on a real server or file of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from svc.stores.base import Database
from svc.stores.opening import open_database


@pytest.fixture(params=["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    return f"sqlite:///{tmp_path / 'folder' / 'svc.db'}"


@pytest.fixture
def opener(url: str) -> Callable[[], Database]:
    return lambda: open_database(url)


@pytest.fixture
def database(opener: Callable[[], Database]) -> Iterator[Database]:
    found = opener()
    found.migrate()
    yield found
    found.close()
