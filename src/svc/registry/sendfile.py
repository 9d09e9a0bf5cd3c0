"""Send file ranges over sockets with sendfile(2), from threads.

A fast client is served by blocking calls, which need no polling. A slow client's transfer returns its thread, and the
event loop waits until the socket is writable, so that slow clients need no threads. A slow disk blocks one thread only.
Transfers use neither tasks nor futures, whose overhead would dominate small ranges.

The socket is a duplicate, so that no one can close it while a thread uses it.
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
"""Bytes after which a transfer yields its thread to waiting transfers."""
FAST_CLIENT_BYTES = 1 << 20
"""A client that reads this much without blocking is fast."""
SEND_TIMEOUT_MS = 200
"""A client that reads nothing for this long is slow."""
SPEED_SAMPLE_BYTES = 4 << 20
SPEED_SAMPLE_SECONDS = 0.2
"""A slow client that reads a sample within this time is fast again."""
STALL_TIMEOUT_SECONDS = 60.0
"""A client that reads nothing for this long is disconnected."""

_SEND_TIMEOUT_TIMEVAL = struct.pack("@ll", SEND_TIMEOUT_MS // 1000, SEND_TIMEOUT_MS % 1000 * 1000)


class SendThreadPool:
    """A thread pool that grows on demand. It belongs to the event loop that is running at its creation."""

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
        """Return whether a transfer is waiting for a thread."""
        return self._in_threads > MAX_SEND_THREADS

    def submit(self, transfer: Transfer) -> None:
        """Run the transfer in a thread, now or when one is free."""
        self._transfers.add(transfer)
        self._in_threads += 1
        if len(self._threads) < min(self._in_threads, MAX_SEND_THREADS):
            self._threads.append(threading.Thread(target=self._run_thread, name=f"send-{len(self._threads)}"))
            self._threads[-1].start()
        self._queue.put(transfer)

    def discard(self, transfer: Transfer) -> None:
        """Remove a finished transfer."""
        self._transfers.discard(transfer)

    def close(self) -> None:
        """Stop all transfers and threads."""
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
            if not self._wakeup_pending:  # one wake-up for all transfers that return together
                self._wakeup_pending = True
                try:
                    self.loop.call_soon_threadsafe(self._process_returned)
                except RuntimeError:  # the loop has ended: `close` handles the transfers
                    log.debug("a transfer ended after the event loop")

    def _process_returned(self) -> None:
        self._wakeup_pending = False
        while self._returned:
            self._in_threads -= 1
            self._returned.popleft().on_thread_released()


class Transfer:
    """A file range that is being sent. `on_end` is called once, in the loop, with whether all bytes were sent."""

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
        # Passing family, type and protocol avoids system calls that detect them.
        self._sock = socket.socket(sock.family, sock.type, sock.proto, os.dup(sock.fileno()))
        self._file = file
        """Keeps the descriptor open."""
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
        """Start sending. Raises OSError if the client has disconnected."""
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT_TIMEVAL)
        except OSError:
            self._sock.close()
            raise
        self._send_pool.submit(self)

    def stop(self) -> None:
        """Shut the connection down, which ends a blocking call of a thread. Call it in the loop's thread."""
        self._failed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # the connection has ended already
            log.debug("a connection was already closed")
        if self._timer is not None:
            self._fail()

    # in the loop

    def on_thread_released(self) -> None:
        """Continue after a thread has returned the transfer."""
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
        """Send until the end, until the client is slow, or until other transfers wait for the thread."""
        try:
            os.set_blocking(self._sock.fileno(), not self._slow)
            if self._head:
                # MSG_MORE: the head shares a packet with the first bytes of the file.
                self._head = self._head[self._sock.send(self._head, socket.MSG_MORE) :]
            self._send_file(self._position + TRANSFER_QUANTUM_BYTES)
        except BlockingIOError:
            if not self._slow:
                self._mark_slow()
            elif self._position - self._slow_position >= SPEED_SAMPLE_BYTES:
                self._recheck_speed()
        except OSError:
            self._failed = True
        except Exception:  # thread boundary: the thread must survive
            self._failed = True
            log.exception("an error while sending %s", self._file.relative_path)

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
                raise ConnectionAbortedError("the file is shorter than its entry")
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
        """Set the send buffer. The kernel wakes a sender when a third is free: larger buffers cause fewer wake-ups."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def _recheck_speed(self) -> None:
        """Give a thread back to a client that was slow only for a moment."""
        elapsed = time.monotonic() - self._slow_since
        self._mark_slow()
        self._slow = elapsed > SPEED_SAMPLE_SECONDS


OnTransferEnd = Callable[[bool], None]
