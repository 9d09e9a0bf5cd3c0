"""The registry of the functions for bundles."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.client.conftest import Call

from svc.client.bundles import ResolveOptions, list_entries
from svc.errors import UsageError


@pytest.mark.parametrize("registry", ["http://[::1", "[::1]:8080]", "file"])
def test_list_entries_malformed_registry_url_is_rejected(registry: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the URL of a registry"):
        list_entries(ResolveOptions(tmp_path, registry=registry))


@pytest.mark.parametrize("keys", [",", " , "])
def test_client_trusted_keys_without_a_key_are_rejected(
    call: Call, keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SVC_REGISTRY_ROOT", str(tmp_path))
    monkeypatch.setenv("SVC_TRUSTED_KEYS", keys)
    with pytest.raises(UsageError, match="SVC_TRUSTED_KEYS is set, but has no key"):
        call("bundle", "m@1")
