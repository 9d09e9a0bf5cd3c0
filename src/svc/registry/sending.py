"""Sends a part of a file over a socket, by the kernel alone, from threads.

A fast reader is served by blocking calls, which need no polling. One that does not keep up gives its thread back and is
waited for by the loop, so that a thousand slow readers cost no thread. A cold disk blocks only the thread that reads.

The socket and the file are duplicates of their own: nobody can close them while a thread is at them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

THREADS = 64
QUANTUM = 16 << 20
"""Bytes until another transfer may have the thread."""
PATIENCE_MS = 200
"""A reader that takes nothing for so long is slow."""
SAMPLE = 4 << 20
SAMPLE_SECONDS = 0.2
"""A slow reader that takes a sample in less time is not slow any more."""
STALLED_SECONDS = 60.0
"""A reader that takes nothing for so long is gone."""

_PATIENCE = struct.pack("@ll", PATIENCE_MS // 1000, PATIENCE_MS % 1000 * 1000)


class Lanes(ThreadPoolExecutor):
    """The threads, and how many transfers want one."""

    def __init__(self) -> None:
        super().__init__(THREADS, thread_name_prefix="send")
        self.transfers = 0

    @property
    def crowded(self) -> bool:
        """Whether somebody may be waiting for a thread."""
        return self.transfers > THREADS


class Transfer:
    """One part of a file on its way. `sock` and `fd` are duplicated here and closed by `run`."""

    def __init__(self, sock: socket.socket, fd: int, start: int, end: int, head: bytes) -> None:
        self._sock = socket.socket(fileno=os.dup(sock.fileno()))
        self._fd = os.dup(fd)
        self._at = start
        self._end = end
        self._head = head
        self._slow = False
        self._slow_at = 0
        self._slow_since = 0.0

    def stop(self) -> None:
        """Ends the connection, and with it whatever a thread is doing with it."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            return

    async def run(self, lanes: Lanes) -> None:
        """Sends everything. Raises OSError or TimeoutError when the reader is gone."""
        loop = asyncio.get_running_loop()
        lanes.transfers += 1
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
            while self._head or self._at < self._end:
                await self._finished(loop.run_in_executor(lanes, self._send, lanes))
                if self._slow and self._at < self._end:
                    await self._writable(loop)
        finally:
            lanes.transfers -= 1
            try:
                os.set_blocking(self._sock.fileno(), False)
            finally:
                self._sock.close()
                os.close(self._fd)

    async def _finished(self, work: asyncio.Future[None]) -> None:
        """Waits for the thread, even if this task is cancelled: it may not lose its descriptors."""
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([work])
            raise

    async def _writable(self, loop: asyncio.AbstractEventLoop) -> None:
        ready = asyncio.Event()
        loop.add_writer(self._sock.fileno(), ready.set)
        try:
            async with asyncio.timeout(STALLED_SECONDS):
                await ready.wait()
        finally:
            loop.remove_writer(self._sock.fileno())

    def _send(self, lanes: Lanes) -> None:
        """In a thread: to the end, or until the reader is slow, or others wait for the thread."""
        out = self._sock.fileno()
        os.set_blocking(out, not self._slow)
        try:
            if self._head:
                # MSG_MORE: the head leaves in one packet with the first bytes of the file.
                self._head = self._head[self._sock.send(self._head, socket.MSG_MORE) :]
            until = self._at + QUANTUM
            while self._at < self._end and (self._at < until or not lanes.crowded):
                wanted = min(self._end - self._at, QUANTUM)
                sent = os.sendfile(out, self._fd, self._at, wanted)
                if sent == 0:
                    raise ConnectionAbortedError("the file ended too early")
                self._at += sent
                if sent < wanted and not self._slow:
                    self._is_slow()
                    return
        except BlockingIOError:
            if not self._slow:
                self._is_slow()
            elif self._at - self._slow_at >= SAMPLE:
                self._look_again()

    def _is_slow(self) -> None:
        self._slow, self._slow_at, self._slow_since = True, self._at, time.monotonic()

    def _look_again(self) -> None:
        """A reader that was only held up for a moment gets a thread again."""
        took = time.monotonic() - self._slow_since
        self._is_slow()
        self._slow = took > SAMPLE_SECONDS
