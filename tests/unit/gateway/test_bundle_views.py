"""What the admin API shows of bundles: summaries with a time budget, signature states, unreadable bundles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from svc.gateway.endpoints import bundle_views
from svc.gateway.endpoints.bundle_views import BundleViews, signature_state
from svc.stores.bundles.base import BundleDraft
from svc.stores.bundles.folder import FolderStore
from svc.wire.bundle import BundleEntry, Signature
from tests.e2e.accounts.test_admin_bundles import make_bundle


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    with FolderStore(tmp_path / "root") as opened:
        yield opened


def publish(store: FolderStore, model_id: str, **more: object) -> BundleEntry:
    data = make_bundle(model_id, **more)
    upload = store.create_upload(len(data))
    upload.write(data)
    return store.publish(upload, BundleDraft(model_id, "1.0", "any"))[0]


def test_views_summary_beyond_the_time_budget_is_null_until_it_is_loaded(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = publish(store, "m", description="one")
    views = BundleViews(store, (), None)
    monkeypatch.setattr(bundle_views, "SUMMARY_TIME_BUDGET_SECONDS", -1.0)
    assert views.list_states([entry])[0].summary is None
    assert not views.has_summary(entry)
    views.load_summary(entry)
    summary = views.list_states([entry])[0].summary
    assert summary is not None
    assert summary.description == "one"


def test_views_number_of_cached_summaries_is_bounded(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_views, "MAX_CACHED_SUMMARIES", 2)
    views = BundleViews(store, (), None)
    entries = [publish(store, f"m{number}") for number in range(4)]
    views.list_states(entries)
    assert [views.has_summary(entry) for entry in entries] == [False, False, True, True]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"languages": ["en", 7, "de"]}, ["en", "de"]),
        ({"language": "en"}, ["en"]),
        ({"languages": {"en": 1}}, []),
        ({"languages": ["x" * 5000]}, ["x" * 2000]),
        (None, []),
    ],
)
def test_views_summary_tolerates_any_metadata(store: FolderStore, metadata: object, expected: list[str]) -> None:
    summary = BundleViews(store, (), None).list_states([publish(store, "m", metadata=metadata)])[0].summary
    assert summary is not None
    assert summary.languages == expected


def test_views_missing_and_damaged_files_are_described(store: FolderStore) -> None:
    entry = publish(store, "m")
    views = BundleViews(store, (), None)
    path = store.bundle_path(entry)
    path.write_bytes(b"x" * entry.size_bytes)
    detail = views.describe(entry)
    assert (detail.metadata, detail.files, detail.summary) == (None, None, None)
    assert detail.problem
    path.unlink()
    missing = views.describe(entry)
    assert missing.problem == "The file of the bundle cannot be read."
    assert json.loads(msgspec.json.encode(missing))["key"] == "m/1.0/any"
    assert str(path) not in (missing.problem, detail.problem)


def test_views_pull_command_quotes_what_a_shell_would_run(store: FolderStore) -> None:
    entry = BundleEntry(model_id="a b", version="1;rm", target="any", size_bytes=1, path="x")
    (state,) = BundleViews(store, (), "http://127.0.0.1:8080").list_states([entry])
    assert state.pull_command == ("svc registry pull 'a b@1;rm' --platform any --registry http://127.0.0.1:8080")


def test_signature_state_without_hash_is_invalid() -> None:
    pytest.importorskip("cryptography")
    entry = BundleEntry(
        model_id="m", version="1", target="any", size_bytes=1, path="x", signatures=(Signature("a", "b"),)
    )
    assert signature_state(entry, {"a"}) == "invalid"
    assert signature_state(msgspec.structs.replace(entry, signatures=()), {"a"}) == "unsigned"
