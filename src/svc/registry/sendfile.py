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

from svc.registry.open_files import OpenFile
from svc.registry.send_buffer import SLOW_CLIENT_SEND_BUFFER_BYTES, fast_send_buffer_size

log = logging.getLogger("svc.registry")

MAX_SEND_THREADS = 64
TRANSFER_QUANTUM_BYTES = 16 << 20
"""Bytes until another transfer may have the thread."""
FAST_CLIENT_BYTES = 1 << 20
"""A reader that has taken so much without being waited for is fast."""
SEND_TIMEOUT_MS = 200
"""A reader that takes nothing for so long is slow."""
SPEED_SAMPLE_BYTES = 4 << 20
SPEED_SAMPLE_SECONDS = 0.2
"""A slow reader that takes a sample in less time is not slow any more."""
STALL_TIMEOUT_SECONDS = 60.0
"""A reader that takes nothing for so long is gone."""

_SEND_TIMEOUT_TIMEVAL = struct.pack("@ll", SEND_TIMEOUT_MS // 1000, SEND_TIMEOUT_MS % 1000 * 1000)


class SendThreadPool:
    """The threads, started as they are needed. Belongs to the loop that runs when it is made."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.fast_buffer_bytes = fast_send_buffer_size()
        self._queue: SimpleQueue[Transfer | None] = SimpleQueue()
        self._returned: deque[Transfer] = deque()
        self._wakeup_pending = False
        self._threads: list[threading.Thread] = []
        self._transfers: set[Transfer] = set()
        self._in_threads = 0

    @property
    def is_saturated(self) -> bool:
        """Whether somebody is waiting for a thread."""
        return self._in_threads > MAX_SEND_THREADS

    def submit(self, transfer: Transfer) -> None:
        """Gives it a thread, now or when one is free."""
        self._transfers.add(transfer)
        self._in_threads += 1
        if len(self._threads) < min(self._in_threads, MAX_SEND_THREADS):
            self._threads.append(threading.Thread(target=self._run_thread, name=f"send-{len(self._threads)}"))
            self._threads[-1].start()
        self._queue.put(transfer)

    def discard(self, transfer: Transfer) -> None:
        """It has ended."""
        self._transfers.discard(transfer)

    def close(self) -> None:
        """Ends every transfer and every thread."""
        for transfer in list(self._transfers):
            transfer.stop()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._process_returned()

    def _run_thread(self) -> None:
        while (transfer := self._queue.get()) is not None:
            transfer.send()
            self._returned.append(transfer)
            if not self._wakeup_pending:  # one wake-up for all that come back at once
                self._wakeup_pending = True
                try:
                    self.loop.call_soon_threadsafe(self._process_returned)
                except RuntimeError:  # the loop has ended: `close` takes them
                    log.debug("a transfer ended after the loop")

    def _process_returned(self) -> None:
        self._wakeup_pending = False
        while self._returned:
            self._in_threads -= 1
            self._returned.popleft().on_thread_released()


class Transfer:
    """A part of a file on its way. `ended` is told in the loop, once, whether everything was sent."""

    def __init__(
        self,
        send_pool: SendThreadPool,
        sock: socket.socket,
        file: OpenFile,
        byte_range: tuple[int, int],
        head: bytes,
        on_end: OnTransferEnd,
    ) -> None:
        self._send_pool = send_pool
        # With its kind told, nothing is asked of the kernel about it.
        self._sock = socket.socket(sock.family, sock.type, sock.proto, os.dup(sock.fileno()))
        self._file = file
        """Held, so that its file stays open."""
        self._position, self._end = byte_range
        self._head = head
        self._on_end = on_end
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None
        self._slow = False
        self._has_fast_buffer = False
        self._slow_position = 0
        self._slow_since = 0.0

    def start(self) -> None:
        """Raises OSError when the reader is gone."""
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT_TIMEVAL)
        except OSError:
            self._sock.close()
            raise
        self._send_pool.submit(self)

    def stop(self) -> None:
        """Ends the connection, and with it whatever a thread is doing with it. In the loop's thread."""
        self._failed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            log.debug("a connection had ended")
        if self._timer is not None:
            self._fail()

    # in the loop

    def on_thread_released(self) -> None:
        """A thread has given it back."""
        if self._failed or (not self._head and self._position == self._end):
            self._close()
        elif self._slow:
            self._send_pool.loop.add_writer(self._sock.fileno(), self._on_writable)
            self._timer = self._send_pool.loop.call_later(STALL_TIMEOUT_SECONDS, self._fail)
        else:
            self._send_pool.submit(self)

    def _on_writable(self) -> None:
        self._stop_waiting()
        self._send_pool.submit(self)

    def _fail(self) -> None:
        self._stop_waiting()
        self._failed = True
        self._close()

    def _stop_waiting(self) -> None:
        self._send_pool.loop.remove_writer(self._sock.fileno())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        self._send_pool.discard(self)
        try:
            os.set_blocking(self._sock.fileno(), False)
        finally:
            self._sock.close()
            self._on_end(not self._failed)

    # in a thread

    def send(self) -> None:
        """To the end, or until the reader is slow, or others wait for the thread."""
        try:
            os.set_blocking(self._sock.fileno(), not self._slow)
            if self._head:
                # MSG_MORE: the head leaves in one packet with the first bytes of the file.
                self._head = self._head[self._sock.send(self._head, socket.MSG_MORE) :]
            self._send_file(self._position + TRANSFER_QUANTUM_BYTES)
        except BlockingIOError:
            if not self._slow:
                self._mark_slow()
            elif self._position - self._slow_position >= SPEED_SAMPLE_BYTES:
                self._recheck_speed()
        except OSError:
            self._failed = True
        except Exception:  # the edge of a thread, which goes on for others
            self._failed = True
            log.exception("a fault while sending %s", self._file.relative_path)

    def _send_file(self, until: int) -> None:
        socket_fd, file_fd = self._sock.fileno(), self._file.fd
        while self._position < self._end and (self._position < until or not self._send_pool.is_saturated):
            requested = min(
                self._end - self._position,
                FAST_CLIENT_BYTES
                if self._send_pool.fast_buffer_bytes and not self._has_fast_buffer
                else TRANSFER_QUANTUM_BYTES,
            )
            sent = os.sendfile(socket_fd, file_fd, self._position, requested)
            if sent == 0:
                raise ConnectionAbortedError("the file ended too early")
            self._position += sent
            if self._slow:
                continue
            if sent < requested:
                self._mark_slow()
                return
            if self._send_pool.fast_buffer_bytes and not self._has_fast_buffer:
                self._has_fast_buffer = True
                self._set_buffer(self._send_pool.fast_buffer_bytes)

    def _mark_slow(self) -> None:
        self._slow, self._slow_position, self._slow_since = True, self._position, time.monotonic()
        if self._has_fast_buffer:
            self._has_fast_buffer = False
            self._set_buffer(SLOW_CLIENT_SEND_BUFFER_BYTES)

    def _set_buffer(self, size: int) -> None:
        """The kernel wakes a sender when a third of its buffer is free: a large one wakes it less often."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def _recheck_speed(self) -> None:
        """A reader that was only held up for a moment gets a thread again."""
        elapsed = time.monotonic() - self._slow_since
        self._mark_slow()
        self._slow = elapsed > SPEED_SAMPLE_SECONDS


OnTransferEnd = Callable[[bool], None]
