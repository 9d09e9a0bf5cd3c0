"""Parts of files over real sockets: to readers of every pace, more of them than threads, and to ones that leave."""

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


def whole(item):
    return os.pread(item.fd, SIZE, 0)


def pair():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    return server, reader


class Sent:
    """A transfer, and what became of it."""

    def __init__(self, lanes, item, start=0, end=SIZE):
        self.server, self.reader = pair()
        self.server.setblocking(False)
        self.ended = asyncio.get_running_loop().create_future()
        part = (start, end)
        self.transfer = Transfer(lanes, self.server, item, part, b"head", self.ended.set_result)
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


def let_go():
    """Of what earlier tests have left behind, and what would close meanwhile: their last event loop, and garbage."""
    asyncio.run(asyncio.sleep(0))
    gc.collect()


def test_more_readers_than_threads_of_every_pace(item):
    async def main():
        lanes = SendThreadPool()
        spans = [(n * 1000, SIZE - n * 977) for n in range(MAX_SEND_THREADS + 6)]
        sent = [Sent(lanes, item, *span) for span in spans]
        reads = [
            # Every eighth stops longer than a thread waits, at its start or after it was found to be fast.
            asyncio.to_thread(each.read, (1, 5 << 20)[n % 16 > 8] if n % 8 == 0 else None, 0.5)
            for n, each in enumerate(sent)
        ]
        digests = asyncio.gather(*reads)
        assert all(await asyncio.gather(*(each.outcome() for each in sent)))
        got = await digests
        assert got == [hashlib.sha256(b"head" + whole(item)[start:end]).hexdigest() for start, end in spans]
        for each in sent:
            each.reader.close()
        lanes.close()

    let_go()
    before, threads = descriptors(), threading.active_count()
    asyncio.run(main())
    assert descriptors() <= before
    assert threading.active_count() <= threads


def test_readers_that_stop_cost_no_thread(item):
    async def main():
        lanes = SendThreadPool()
        stopped = [Sent(lanes, item) for _ in range(MAX_SEND_THREADS + 2)]
        await asyncio.sleep(0.5)
        quick = Sent(lanes, item)
        read = asyncio.create_task(asyncio.to_thread(quick.read))
        assert await quick.outcome()
        assert await read == hashlib.sha256(b"head" + whole(item)).hexdigest()
        # Some leave by themselves; the rest is ended with the lanes, waiting ones too.
        for each in stopped[:10]:
            each.reader.close()
        assert not any([await each.outcome() for each in stopped[:10]])
        began = time.monotonic()
        lanes.close()
        assert time.monotonic() - began < 2
        assert not any([await each.outcome() for each in stopped[10:]])
        for each in [*stopped, quick]:
            each.reader.close()

    let_go()
    before = descriptors()
    asyncio.run(main())
    assert descriptors() <= before


def test_one_that_takes_nothing_for_long_is_given_up(item, monkeypatch):
    monkeypatch.setattr(sendfile, "STALL_TIMEOUT_SECONDS", 0.3)

    async def main():
        lanes = SendThreadPool()
        sent = Sent(lanes, item)
        assert not await sent.outcome()
        lanes.close()
        sent.reader.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("most", "own", "asked"),
    [
        ("4194304\n", "4096\t16384\t4194304\n", MAX_SEND_BUFFER_BYTES),
        ("212992\n", "4096\t16384\t4194304\n", 0),
        ("2500000\n", "4096\t16384\t4194304\n", 2500000),
        ("x", "", 0),
    ],
)
def test_a_buffer_is_asked_for_only_where_that_makes_it_larger(tmp_path, most, own, asked):
    (tmp_path / "core").mkdir()
    (tmp_path / "ipv4").mkdir()
    (tmp_path / "core/wmem_max").write_text(most)
    (tmp_path / "ipv4/tcp_wmem").write_text(own)
    assert fast_send_buffer_size(tmp_path) == asked
    assert fast_send_buffer_size(tmp_path / "missing") == 0
