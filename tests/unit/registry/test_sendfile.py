"""File ranges sent over real sockets, to fast, slow, stalled and disconnecting readers."""

import asyncio
import gc
import hashlib
import os
import random
import socket
import threading
import time

import pytest

from svc.registry import sendfile
from svc.registry.open_files import OpenFile
from svc.registry.send_buffer import MAX_SEND_BUFFER_BYTES, fast_send_buffer_size
from svc.registry.sendfile import MAX_SEND_THREADS, SendThreadPool, Transfer
from svc.wire.bundle import BundleEntry

SIZE = 9 << 20


@pytest.fixture(scope="module")
def item(tmp_path_factory):
    path = tmp_path_factory.mktemp("sending") / "file"
    path.write_bytes(random.Random(4).randbytes(SIZE))
    return OpenFile(
        str(path), BundleEntry(model_id="a", version="1", target="any", size_bytes=SIZE, path="a", sha256="0" * 64)
    )


def file_bytes(item):
    return os.pread(item.fd, SIZE, 0)


def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    return server, reader


class RunningTransfer:
    """A transfer and its result."""

    def __init__(self, pool, item, start=0, end=SIZE):
        self.server, self.reader = pair()
        self.server.setblocking(False)
        self.ended = asyncio.get_running_loop().create_future()
        part = (start, end)
        self.transfer = Transfer(pool, self.server, item, part, b"head", self.ended.set_result)
        self.transfer.start()

    def read(self, pause_after=None, pause=0.0):
        digest, left = hashlib.sha256(), pause_after
        while data := self.reader.recv(1 << 18):
            digest.update(data)
            if left is not None and (left := left - len(data)) <= 0:
                time.sleep(pause)
                left = None
        return digest.hexdigest()

    async def outcome(self):
        ok = await asyncio.wait_for(self.ended, 20)
        self.server.close()
        return ok


def descriptors():
    return len(os.listdir("/dev/fd"))


def release_earlier_tests():
    """Close the event loop and garbage of earlier tests, whose descriptors would close during this test."""
    asyncio.run(asyncio.sleep(0))
    gc.collect()


@pytest.mark.slow
def test_transfer_more_readers_than_threads_get_correct_bytes(item):
    async def main():
        pool = SendThreadPool()
        spans = [(n * 1000, SIZE - n * 977) for n in range(MAX_SEND_THREADS + 6)]
        transfers = [RunningTransfer(pool, item, *span) for span in spans]
        reads = [
            # Every eighth reader pauses longer than a thread waits, at its start or once it counts as fast.
            asyncio.to_thread(each.read, (1, 5 << 20)[n % 16 > 8] if n % 8 == 0 else None, 0.5)
            for n, each in enumerate(transfers)
        ]
        digests = asyncio.gather(*reads)
        assert all(await asyncio.gather(*(each.outcome() for each in transfers)))
        got = await digests
        assert got == [hashlib.sha256(b"head" + file_bytes(item)[start:end]).hexdigest() for start, end in spans]
        for each in transfers:
            each.reader.close()
        pool.close()

    release_earlier_tests()
    before, threads = descriptors(), threading.active_count()
    asyncio.run(main())
    assert descriptors() <= before
    assert threading.active_count() <= threads


def test_transfer_stalled_readers_do_not_block_others(item):
    async def main():
        pool = SendThreadPool()
        stopped = [RunningTransfer(pool, item) for _ in range(MAX_SEND_THREADS + 2)]
        await asyncio.sleep(0.5)
        quick = RunningTransfer(pool, item)
        read = asyncio.create_task(asyncio.to_thread(quick.read))
        assert await quick.outcome()
        assert await read == hashlib.sha256(b"head" + file_bytes(item)).hexdigest()
        # Some readers disconnect. Closing the pool ends the other transfers, waiting ones too.
        for each in stopped[:10]:
            each.reader.close()
        assert not any([await each.outcome() for each in stopped[:10]])
        began = time.monotonic()
        pool.close()
        assert time.monotonic() - began < 2
        assert not any([await each.outcome() for each in stopped[10:]])
        for each in [*stopped, quick]:
            each.reader.close()

    release_earlier_tests()
    before = descriptors()
    asyncio.run(main())
    assert descriptors() <= before


def test_transfer_stalled_reader_times_out(item, monkeypatch):
    monkeypatch.setattr(sendfile, "STALL_TIMEOUT_SECONDS", 0.3)

    async def main():
        pool = SendThreadPool()
        transfer = RunningTransfer(pool, item)
        assert not await transfer.outcome()
        pool.close()
        transfer.reader.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("max_bytes", "tcp_bytes", "expected"),
    [
        ("4194304\n", "4096\t16384\t4194304\n", MAX_SEND_BUFFER_BYTES),
        ("212992\n", "4096\t16384\t4194304\n", 0),
        ("2500000\n", "4096\t16384\t4194304\n", 2500000),
        ("x", "", 0),
    ],
)
def test_fast_send_buffer_size_is_set_only_if_larger_than_default(tmp_path, max_bytes, tcp_bytes, expected):
    (tmp_path / "core").mkdir()
    (tmp_path / "ipv4").mkdir()
    (tmp_path / "core/wmem_max").write_text(max_bytes)
    (tmp_path / "ipv4/tcp_wmem").write_text(tcp_bytes)
    assert fast_send_buffer_size(tmp_path) == expected
    assert fast_send_buffer_size(tmp_path / "missing") == 0
