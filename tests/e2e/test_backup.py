"""`svc backup` while chats run, and a gateway that starts from the restored state."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import GPT, HI, Gateway, provider_environment, run
from tests.fakes.provider import FakeProvider

CHATS_BEFORE_BACKUP = 60
MAX_CHATS = 900
"""`svc usage` shows at most 1000 entries."""
WAIT_SECONDS = 30.0


class Chats:
    """Threads that chat until `stop`, and the ids of the complete responses."""

    def __init__(self, gateway: Gateway, key: str, threads: int) -> None:
        self.request_ids: list[str] = []
        self._gateway, self._key = gateway, key
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        with self._gateway.raw(timeout=WAIT_SECONDS) as raw:
            while not self._stop.is_set() and len(self.request_ids) < MAX_CHATS:
                got = raw.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=self._key)
                assert got.status == 200
                self.request_ids.append(got.headers["x-request-id"])
                time.sleep(0.002)

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.request_ids) < count:
            assert time.monotonic() < deadline, "the chats are too slow, or failed"
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)


def test_backup_under_load_restores_each_entry_once_and_the_keys(
    start_gateway: StartGateway, fakes: Mapping[str, FakeProvider], tmp_path: Path
) -> None:
    gateway = start_gateway()
    home = gateway.home
    key = json.loads(run("keys", "create", "--name", "shop", "--json", home=home).stdout)["key"]
    chats = Chats(gateway, key, threads=2)
    try:
        chats.wait_for(CHATS_BEFORE_BACKUP)
        before = list(chats.request_ids)
        backup = run("backup", str(tmp_path / "b.tar"), "--json", home=home)
        refused = run("restore", str(tmp_path / "b.tar"), "--force", home=home)
    finally:
        chats.stop()
    assert backup.returncode == 0, backup.stderr
    assert any(file["path"].startswith("journal/") for file in json.loads(backup.stdout)["files"])
    assert refused.returncode == 1
    assert "Stop it first" in refused.stderr

    new_home = tmp_path / "new"
    new_home.mkdir()
    restored = run("restore", str(tmp_path / "b.tar"), home=new_home)
    assert restored.returncode == 0, restored.stderr
    second = Gateway(new_home, env=provider_environment(fakes), is_forked=True).start()
    try:
        got = second.request("POST", "/v1/chat/completions", {"model": GPT, "messages": HI}, key=key)
        assert got.status == 200
    finally:
        assert second.stop() == 0, second.log
    usage = run("usage", "--limit", "1000", "--json", home=new_home)
    counts = Counter(row["request_id"] for row in json.loads(usage.stdout))
    assert set(counts.values()) == {1}
    assert set(before) - set(counts) == set()
    assert set(counts) - set(chats.request_ids) == {got.headers["x-request-id"]}
