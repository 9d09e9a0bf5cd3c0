"""Compares the registry with nginx: same file, same run, same client, on loopback.

    python bench/registry.py [--size MiB] [--rounds N]

Rounds alternate between the two, so that noise affects both. Medians are shown. CPU is that of the server's processes
and threads. The client is one process that reads with recv_into and discards the bytes.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from svc.bundles.pack import pack

NGINX = """
worker_processes 1; daemon off; pid {run}/nginx.pid; error_log {run}/error.log;
events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; client_body_temp_path {run}/b;
  proxy_temp_path {run}/p; fastcgi_temp_path {run}/f; uwsgi_temp_path {run}/u; scgi_temp_path {run}/s;
  server {{ listen 127.0.0.1:{port}; location /bundles/ {{ alias {root}/; }} }} }}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def cpu(pid: int) -> float:
    """Return CPU seconds from the scheduler's statistics. The ticks of 10 ms in /proc/PID/stat are too coarse here."""
    tasks = [each for process in family(pid) for each in Path(f"/proc/{process}/task").glob("*/schedstat")]
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def rss(pid: int, key: str = "VmHWM") -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def request(port: int, path: str, extra: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n{extra}\r\n".encode()


def read_answer(sock: socket.socket, buffer: bytearray) -> int:
    head = b""
    while b"\r\n\r\n" not in head:
        data = sock.recv(4096)
        if not data:
            raise ConnectionError("closed")
        head += data
    top, _, rest = head.partition(b"\r\n\r\n")
    assert top.split()[1] in (b"200", b"206"), top
    length = next(int(line.split(b":")[1]) for line in top.split(b"\r\n") if line.lower().startswith(b"content-length"))
    left = length - len(rest)
    view = memoryview(buffer)
    while left:
        got = sock.recv_into(view, min(left, len(buffer)))
        if not got:
            raise ConnectionError("cut")
        left -= got
    return length


class Target:
    def __init__(self, name: str, process: subprocess.Popen, port: int) -> None:
        self.name, self.process, self.port = name, process, port

    def parallel(self, path: str, size: int, part: int = 16 << 20, lanes: int = 64) -> tuple[float, float]:
        """Read one range on each of 64 connections. Return MB/s and CPU seconds."""
        starts = [(index * part) % max(1, size - part + 1) for index in range(lanes)]
        before, began = cpu(self.process.pid), time.perf_counter()
        threads = [threading.Thread(target=self._range, args=(path, start, part)) for start in starts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return lanes * part / 1e6 / (time.perf_counter() - began), cpu(self.process.pid) - before

    def _range(self, path: str, start: int, part: int) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(request(self.port, path, f"range: bytes={start}-{start + part - 1}\r\n"))
            assert read_answer(sock, bytearray(1 << 18)) == part

    def whole(self, path: str) -> tuple[float, float]:
        before, began = cpu(self.process.pid), time.perf_counter()
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(request(self.port, path))
            size = read_answer(sock, bytearray(1 << 20))
        return size / 1e6 / (time.perf_counter() - began), cpu(self.process.pid) - before

    def small(self, paths: list[str], seconds: float = 3.0) -> tuple[float, float]:
        """Return requests/s over 8 connections, and the 99th percentile in ms."""
        script = Path(__file__).resolve()
        done = subprocess.run(
            [sys.executable, str(script), "--load", str(self.port), str(seconds), *paths],
            capture_output=True,
            text=True,
            check=True,
        )
        rate, p99 = done.stdout.split()
        return float(rate), float(p99)


def load(port: int, seconds: float, paths: list[str]) -> None:
    """Run a client process: one thread with many sockets, which takes little CPU time."""
    import selectors

    selector = selectors.DefaultSelector()
    payloads = [request(port, path) for path in paths]
    times: list[float] = []
    picks = random.Random(1)
    for _ in range(8):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(picks.choice(payloads))
        selector.register(sock, selectors.EVENT_READ, [time.perf_counter(), 0, b""])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for key, _ in selector.select(1):
            state, sock = key.data, key.fileobj
            data = sock.recv(65536)
            if not data:
                raise ConnectionError("closed")
            if state[1] == 0:
                state[2] += data
                top, found, rest = state[2].partition(b"\r\n\r\n")
                if not found:
                    continue
                at = top.lower().index(b"content-length:")
                state[1] = int(top[at + 15 :].split(b"\r\n")[0]) - len(rest)
            else:
                state[1] -= len(data)
            if state[1] <= 0:
                now = time.perf_counter()
                times.append(now - state[0])
                state[0], state[1], state[2] = now, 0, b""
                sock.sendall(picks.choice(payloads))
    times.sort()
    print(len(times) / seconds, times[int(len(times) * 0.99)] * 1000)


def make(folder: Path, root: Path, home: Path, name: str, size: int) -> str:
    source = folder / name
    source.mkdir()
    about = f'{{"model_id": "{name}", "version": "1", "execution_template": {{"type": "X"}}, "files": ["w.bin"]}}'
    (source / "model_metadata.json").write_text(about)
    with (source / "w.bin").open("wb") as file:
        for _ in range(max(1, size >> 20)):
            file.write(random.randbytes(min(size, 1 << 20)))
    pack(source, folder / f"{name}.xyb")
    shutil.rmtree(source)
    environ = {**os.environ, "SVC_HOME": str(home)}
    subprocess.run(
        [sys.executable, "-m", "svc", "registry", "add", str(folder / f"{name}.xyb"), "--root", str(root)],
        env=environ,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (folder / f"{name}.xyb").unlink()
    return f"/bundles/{name}/1/any/{name}.xyb"


def evict(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def mixed(target: Target, smalls: list[str], colds: list[Path], addresses: list[str]) -> tuple[float, float]:
    """Measure small requests while large uncached files are sent to four readers."""
    stop = threading.Event()

    def reader(number: int) -> None:
        while not stop.is_set():
            evict(colds[number % len(colds)])
            with socket.create_connection(("127.0.0.1", target.port)) as sock:
                sock.sendall(request(target.port, addresses[number % len(addresses)]))
                read_answer(sock, bytearray(1 << 18))

    threads = [threading.Thread(target=reader, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        return target.small(smalls, 4.0)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def row(name: str, ours: list[float], theirs: list[float], wanted: str, unit: str) -> None:
    a, b = statistics.median(ours), statistics.median(theirs)
    spread = (max(ours) - min(ours)) / a if a else 0
    print(
        f"{name:<34} svc {a:10.2f}  nginx {b:10.2f} {unit:<6} ratio {a / b if b else 0:5.2f}  ({wanted}; spread {spread:.0%})"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", nargs="+")
    args = parser.parse_args()
    if args.load:
        load(int(args.load[0]), float(args.load[1]), args.load[2:])
        return
    folder = Path(tempfile.mkdtemp(prefix="svc-bench-"))
    processes = []
    try:
        root, home = folder / "root", folder / "home"
        size = args.size << 20
        big = make(folder, root, home, "big", size)
        smalls = [make(folder, root, home, f"small{number}", 3500) for number in range(8)]
        colds = [make(folder, root, home, f"cold{number}", size // 4) for number in range(2)]
        cold_files = [root / address.removeprefix("/bundles/") for address in colds]
        ports = free_port(), free_port()
        environ = {**os.environ, "SVC_HOME": str(home)}
        serve = [sys.executable, "-m", "svc", "registry", "serve", "--port", str(ports[0]), "--root", str(root)]
        processes.append(subprocess.Popen(serve, env=environ))
        (folder / "nginx.conf").write_text(NGINX.format(run=folder, port=ports[1], root=root))
        os.chmod(folder, 0o755)
        processes.append(subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)]))
        time.sleep(2)
        svc, nginx = Target("svc", processes[0], ports[0]), Target("nginx", processes[1], ports[1])
        both = (svc, nginx)
        for target in both:
            target.whole(big)
        results: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for number in range(args.rounds):
            for target in both if number % 2 else both[::-1]:
                for name, run in (
                    ("parallel", lambda target=target: target.parallel(big, size)),
                    ("whole", lambda target=target: target.whole(big)),
                    ("small", lambda target=target: target.small(smalls)),
                    ("mixed", lambda target=target: mixed(target, smalls, cold_files, colds)),
                ):
                    results.setdefault(name, {}).setdefault(target.name, []).append(run())
        print(f"{size >> 20} MiB, {args.rounds} rounds, {os.cpu_count()} cores")

        def pick(name: str, place: int) -> tuple[list[float], list[float]]:
            return [r[place] for r in results[name]["svc"]], [r[place] for r in results[name]["nginx"]]

        row("64 ranges of 16 MiB", *pick("parallel", 0), ">= 0.9", "MB/s")
        row("  CPU", *pick("parallel", 1), "<= 1.1", "s")
        row("one whole download", *pick("whole", 0), ">= 0.85", "MB/s")
        row("small requests", *pick("small", 0), ">= 0.15", "1/s")
        row("  with uncached files, p99", *pick("mixed", 1), "<= 2", "ms")
        print(f"memory of svc: peak {rss(processes[0].pid):.0f} MiB (<= 64)")
    finally:
        for process in processes:
            process.terminate()
            process.wait(20)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
