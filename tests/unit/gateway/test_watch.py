"""Who may read the metrics without a key."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from svc.gateway.watch import is_local


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),  # through a socket for both versions
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_this_machine_over_either_version_of_ip(address: str, local: bool) -> None:
    assert is_local(Request({"type": "http", "headers": [], "client": (address, 1)})) is local
