"""Sends parts of files over sockets, by the kernel alone, from threads.

A fast reader is served by blocking calls, which need no polling. One that does not keep up gives its thread back and is
waited for by the loop, so that a thousand slow readers cost no thread. A cold disk blocks only the thread that reads.
There is no task and no future for a part: what Python does for one is a good part of what it costs.

The socket is a duplicate: nobody can close it while a thread is at it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from svc.registry.buffers import NARROW, wide_buffer
from svc.registry.shelf import Item

log = logging.getLogger("svc.registry")

THREADS = 64
QUANTUM = 16 << 20
"""Bytes until another transfer may have the thread."""
FIRST = 1 << 20
"""A reader that has taken so much without being waited for is fast."""
PATIENCE_MS = 200
"""A reader that takes nothing for so long is slow."""
SAMPLE = 4 << 20
SAMPLE_SECONDS = 0.2
"""A slow reader that takes a sample in less time is not slow any more."""
STALLED_SECONDS = 60.0
"""A reader that takes nothing for so long is gone."""

_PATIENCE = struct.pack("@ll", PATIENCE_MS // 1000, PATIENCE_MS % 1000 * 1000)


class Lanes:
    """The threads, started as they are needed. Belongs to the loop that runs when it is made."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.wide = wide_buffer()
        self._wanted: SimpleQueue[Transfer | None] = SimpleQueue()
        self._returned: deque[Transfer] = deque()
        self._told = False
        self._threads: list[threading.Thread] = []
        self._transfers: set[Transfer] = set()
        self._in_threads = 0

    @property
    def crowded(self) -> bool:
        """Whether somebody is waiting for a thread."""
        return self._in_threads > THREADS

    def put(self, transfer: Transfer) -> None:
        """Gives it a thread, now or when one is free."""
        self._transfers.add(transfer)
        self._in_threads += 1
        if len(self._threads) < min(self._in_threads, THREADS):
            self._threads.append(threading.Thread(target=self._work, name=f"send-{len(self._threads)}"))
            self._threads[-1].start()
        self._wanted.put(transfer)

    def drop(self, transfer: Transfer) -> None:
        """It has ended."""
        self._transfers.discard(transfer)

    def close(self) -> None:
        """Ends every transfer and every thread."""
        for transfer in list(self._transfers):
            transfer.stop()
        for _ in self._threads:
            self._wanted.put(None)
        for thread in self._threads:
            thread.join()
        self._take_back()

    def _work(self) -> None:
        while (transfer := self._wanted.get()) is not None:
            transfer.send()
            self._returned.append(transfer)
            if not self._told:  # one wake-up for all that come back at once
                self._told = True
                try:
                    self.loop.call_soon_threadsafe(self._take_back)
                except RuntimeError:  # the loop has ended: `close` takes them
                    log.debug("a transfer ended after the loop")

    def _take_back(self) -> None:
        self._told = False
        while self._returned:
            self._in_threads -= 1
            self._returned.popleft().returned()


class Transfer:
    """A part of a file on its way. `ended` is told in the loop, once, whether everything was sent."""

    def __init__(
        self, lanes: Lanes, sock: socket.socket, item: Item, part: tuple[int, int], head: bytes, ended: Ended
    ) -> None:
        self._lanes = lanes
        # With its kind told, nothing is asked of the kernel about it.
        self._sock = socket.socket(sock.family, sock.type, sock.proto, os.dup(sock.fileno()))
        self._item = item
        """Held, so that its file stays open."""
        self._at, self._end = part
        self._head = head
        self._ended = ended
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None
        self._slow = False
        self._wide = False
        self._slow_at = 0
        self._slow_since = 0.0

    def start(self) -> None:
        """Raises OSError when the reader is gone."""
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        except OSError:
            self._sock.close()
            raise
        self._lanes.put(self)

    def stop(self) -> None:
        """Ends the connection, and with it whatever a thread is doing with it. In the loop's thread."""
        self._failed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            log.debug("a connection had ended")
        if self._timer is not None:
            self._give_up()

    # in the loop

    def returned(self) -> None:
        """A thread has given it back."""
        if self._failed or (not self._head and self._at == self._end):
            self._close()
        elif self._slow:
            self._lanes.loop.add_writer(self._sock.fileno(), self._writable)
            self._timer = self._lanes.loop.call_later(STALLED_SECONDS, self._give_up)
        else:
            self._lanes.put(self)

    def _writable(self) -> None:
        self._no_longer_waits()
        self._lanes.put(self)

    def _give_up(self) -> None:
        self._no_longer_waits()
        self._failed = True
        self._close()

    def _no_longer_waits(self) -> None:
        self._lanes.loop.remove_writer(self._sock.fileno())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._lanes.drop(self)
        try:
            os.set_blocking(self._sock.fileno(), False)
        finally:
            self._sock.close()
            self._ended(not self._failed)

    # in a thread

    def send(self) -> None:
        """To the end, or until the reader is slow, or others wait for the thread."""
        try:
            os.set_blocking(self._sock.fileno(), not self._slow)
            if self._head:
                # MSG_MORE: the head leaves in one packet with the first bytes of the file.
                self._head = self._head[self._sock.send(self._head, socket.MSG_MORE) :]
            self._send_file(self._at + QUANTUM)
        except BlockingIOError:
            if not self._slow:
                self._is_slow()
            elif self._at - self._slow_at >= SAMPLE:
                self._look_again()
        except OSError:
            self._failed = True
        except Exception:  # the edge of a thread, which goes on for others
            self._failed = True
            log.exception("a fault while sending %s", self._item.inside)

    def _send_file(self, until: int) -> None:
        out, file = self._sock.fileno(), self._item.fd
        while self._at < self._end and (self._at < until or not self._lanes.crowded):
            wanted = min(self._end - self._at, FIRST if self._lanes.wide and not self._wide else QUANTUM)
            sent = os.sendfile(out, file, self._at, wanted)
            if sent == 0:
                raise ConnectionAbortedError("the file ended too early")
            self._at += sent
            if self._slow:
                continue
            if sent < wanted:
                self._is_slow()
                return
            if self._lanes.wide and not self._wide:
                self._wide = True
                self._set_buffer(self._lanes.wide)

    def _is_slow(self) -> None:
        self._slow, self._slow_at, self._slow_since = True, self._at, time.monotonic()
        if self._wide:
            self._wide = False
            self._set_buffer(NARROW)

    def _set_buffer(self, size: int) -> None:
        """The kernel wakes a sender when a third of its buffer is free: a large one wakes it less often."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def _look_again(self) -> None:
        """A reader that was only held up for a moment gets a thread again."""
        took = time.monotonic() - self._slow_since
        self._is_slow()
        self._slow = took > SAMPLE_SECONDS


Ended = Callable[[bool], None]
