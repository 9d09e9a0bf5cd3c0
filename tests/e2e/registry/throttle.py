"""A proxy that limits the bandwidth and counts bytes."""

import contextlib
import socket
import threading
import time


class Throttle:
    """Forwards the server's bytes at a limited rate and counts them."""

    def __init__(self, target: int, bytes_per_second: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target, self._bytes_per_second, self.sent = target, bytes_per_second, 0
        self._open, self._lock = [], threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        try:
            server = socket.create_connection(("127.0.0.1", self._target), 5)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            self._open += [client, server]
            server.sendall(client.recv(65536))
            while data := server.recv(65536):
                client.sendall(data)
                with self._lock:
                    self.sent += len(data)
                time.sleep(len(data) / self._bytes_per_second)
        except OSError:
            pass
        finally:
            client.close()

    def cut(self):
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open = []

    def close(self):
        self._closed = True
        self._listener.close()
        self.cut()
