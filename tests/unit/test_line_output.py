"""svc.line_output: lines of several processes stay whole, also on a full disk and with a slow reader."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from svc.line_output import RotatedFile, SharedStream

FULL_DISK = """
import os, resource, sys
from pathlib import Path
from svc.line_output import LinesLost, RotatedFile, SharedStream
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))  # as on a full disk
path = Path(sys.argv[1])
opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
output = RotatedFile(path) if sys.argv[2] == "file" else SharedStream(opened)
lost = 0
for first in "ad":
    try:
        output.write(b"".join([bytes([ord(first) + number]) * 39 + b"\\n" for number in range(3)]))
    except LinesLost as error:
        lost += error.count
    except OSError:
        lost += 3
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))  # now there is space
output.write(b"last\\n")
print(lost)
"""


@pytest.mark.parametrize(("kind", "written", "lost"), [("file", "ab", 4), ("stream", "abc", 3)])
def test_full_disk_lines_are_whole_and_lost_ones_are_counted(
    tmp_path: Path, kind: str, written: str, lost: int
) -> None:
    path = tmp_path / "a.log"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), kind], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == f"{lost}\n", done.stderr
    assert path.read_text().splitlines() == [letter * 39 for letter in written] + ["last"]


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_pipe_with_slow_reader_does_not_mix_lines_of_two_writers(tmp_path: Path, kind: str) -> None:
    reader, writer = os.pipe()
    os.mkfifo(tmp_path / "fifo")
    threads = []
    with contextlib.ExitStack() as stack:
        if kind == "file":
            os.close(reader), os.close(writer)
            reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
            os.set_blocking(reader, True)
        for letter in b"ab":
            output = RotatedFile(tmp_path / "fifo") if kind == "file" else SharedStream(os.dup(writer))
            batch = (bytes([letter]) * 700 + b"\n") * 300
            threads.append(threading.Thread(target=output.write, args=(batch,)))
        stack.callback(os.close, reader)
        for thread in threads:
            thread.start()
        read = b""
        while read.count(b"\n") < 600:
            read += os.read(reader, 1500)
            time.sleep(0.0002)  # both writers wait for space
        for thread in threads:
            thread.join(20)
    assert set(read.split(b"\n")) == {b"a" * 700, b"b" * 700, b""}


def test_stream_made_non_blocking_by_another_process_loses_no_line() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = (b"a" * 99 + b"\n") * 2000
    thread = threading.Thread(target=SharedStream(writer).write, args=(data,))
    thread.start()
    read = b""
    while len(read) < len(data):
        read += os.read(reader, 65536)
    thread.join(20)
    os.close(reader)
    os.close(writer)
    assert read == data


def test_rotated_file_directory_missing_for_a_while_recovers_and_logs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = RotatedFile(folder / "a.log")
    file.write(b"1\n")
    folder.rename(tmp_path / "old")
    for _ in range(2):
        with pytest.raises(OSError, match="No such file"):
            file.write(b"lost\n")
    folder.mkdir()
    file.write(b"2\n")
    file.close()
    assert (folder / "a.log").read_bytes() == b"2\n"
    assert (tmp_path / "old" / "a.log").read_bytes() == b"1\n"
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder}/a.log cannot be written, so its lines are dropped: No such file or directory",
        f"{folder}/a.log can be written again",
    ]


def test_rotated_file_truncated_continues_at_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = RotatedFile(path)
    file.write(b"1\n")
    path.write_bytes(b"")  # as logrotate does with `copytruncate`
    file.write(b"2\n")
    file.close()
    assert path.read_bytes() == b"2\n"
