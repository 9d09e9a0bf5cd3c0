"""The registry of the functions for bundles."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.client.bundles import ResolveOptions, list_entries
from svc.errors import UsageError


@pytest.mark.parametrize("registry", ["http://[::1", "[::1]:8080]", "file"])
def test_list_entries_malformed_registry_url_is_rejected(registry: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the URL of a registry"):
        list_entries(ResolveOptions(tmp_path, registry=registry))
