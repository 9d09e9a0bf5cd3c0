"""Many inputs: bounded parallelism, a JSON line each in the order of the inputs, resumable. A failure stops none."""

from __future__ import annotations

import fcntl
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from svc.errors import InvalidRequest, SvcError, UsageError
from svc.pipeline.definition import Kind
from svc.pipeline.files import read_input, save
from svc.pipeline.inputs import names_of
from svc.pipeline.orchestrator import Failure, Listener, Made, Result
from svc.pipeline.stages.base import Item

AHEAD = 4
"""For each worker, so many inputs may be done before the one whose line is next."""


class Runs(Protocol):
    """What runs a pipeline: an `Orchestrator` here, or a cluster. Threads call it at once."""

    @property
    def takes(self) -> Kind: ...

    @property
    def gives(self) -> Kind: ...

    def run(self, given: str, item: Item, listen: Listener | None = None) -> Made: ...


class Watch(Protocol):
    """Who is told what happens; called from several threads."""

    def kept(self, count: int) -> None: ...

    def listen(self, number: int, stage: str, event: str) -> None: ...

    def done(self, number: int, result: Result) -> None: ...


def run_many(
    runs: Runs,
    name: str,
    inputs: Sequence[str],
    *,
    out: Path | None,
    keep: Path | None,
    jobs: int,
    resume: bool,
    watch: Watch,
) -> int:
    """How many inputs failed. Lines go to `out`, else to standard output.

    `keep` gets the audio that comes of an input under the input's name (`talk.wav`), and a folder of that name with
    what each stage made.

    With `resume`, lines of `out` without an error are kept as they are, when they belong to the same inputs.
    Raises UsageError when they do not, or when another run writes to `out` now.
    """
    with _Log(out) if out is not None else nullcontext() as log:
        return _run_many(runs, name, inputs, log, keep, jobs, resume=resume, watch=watch)


def _run_many(
    runs: Runs,
    name: str,
    inputs: Sequence[str],
    log: _Log | None,
    keep: Path | None,
    jobs: int,
    *,
    resume: bool,
    watch: Watch,
) -> int:
    kept = log.take(inputs, resume=resume) if log is not None else {}
    watch.kept(len(kept))
    failed = 0
    names = names_of(inputs, keep) if keep is not None else []
    with ThreadPoolExecutor(jobs, thread_name_prefix="pipeline") as pool:

        def work(number: int) -> Result:
            listen: Listener = lambda stage, event, _: watch.listen(number, stage, event)  # noqa: E731 it is typed so
            result = _run(runs, name, inputs[number], keep / names[number] if keep else None, listen)
            watch.done(number, result)
            return result

        lines = _in_order(pool, work, len(inputs), kept, jobs * AHEAD)
        with log.part.open("wb") if log is not None else nullcontext(sys.stdout.buffer) as sink:
            for line in lines:
                failed += msgspec.json.decode(line, type=Result).error is not None
                sink.write(line + b"\n")
                sink.flush()
    if log is not None:
        log.finish()
    return failed


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[int], Result], count: int, kept: dict[int, bytes], ahead: int
) -> Iterator[bytes]:
    waiting: deque[Future[Result] | bytes] = deque()
    following = 0
    try:
        while following < count or waiting:
            while following < count and len(waiting) < ahead:
                waiting.append(kept[following] if following in kept else pool.submit(work, following))
                following += 1
            first = waiting.popleft()
            yield first if isinstance(first, bytes) else msgspec.json.encode(first.result())
    finally:
        for one in waiting:
            if isinstance(one, Future):
                one.cancel()


def _run(runs: Runs, name: str, given: str, keep: Path | None, listen: Listener) -> Result:
    """One input; what is wrong with the input itself is a failure of this line alone."""
    try:
        last = keep.with_name(f"{keep.name}.wav") if keep is not None and runs.gives == "audio" else None
        return save(runs.run(given, read_input(given, runs.takes), listen), out=last, keep=keep)
    except SvcError as error:
        code = InvalidRequest.code if isinstance(error, UsageError) else error.code
        return Result(name, given, None, [], Failure(None, code, error.message))
    except OSError as error:
        said = f"{error.filename or 'a file'}: {error.strerror or error}."
        return Result(name, given, None, [], Failure(None, InvalidRequest.code, said))


class _Log:
    """The lines, in files that a killed run leaves so that the next one can go on, however often that happens.

    FILE          the whole result of a run
    FILE.part     the lines of a run that goes on, or was cut; locked (flock) while it goes on
    FILE.kept     the lines of earlier runs that it need not make again, each in its place
    """

    def __init__(self, out: Path) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        self._out = out
        self.part = out.with_name(f"{out.name}.part")
        self._earlier = out.with_name(f"{out.name}.kept")
        self._lock = self._claim()

    def __enter__(self) -> _Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_part() and os.fstat(self._lock).st_size == 0:
            self.part.unlink()
        os.close(self._lock)

    def _claim(self) -> int:
        """Raises UsageError when another run has it; the kernel lets go of it however that run ends."""
        while True:
            self._lock = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                raise UsageError(f"Another run writes {self._out} now; let it end, or name another file.") from None
            if self._is_part():
                return self._lock
            os.close(self._lock)  # that run has just ended, and what was opened is its whole result

    def _is_part(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._lock), self.part.stat())
        except FileNotFoundError:
            return False

    def take(self, inputs: Sequence[str], *, resume: bool) -> dict[int, bytes]:
        """Lines that need not be made again, by their number. Raises UsageError when they are of other inputs."""
        if not resume:
            self._earlier.unlink(missing_ok=True)
            return {}
        found: dict[int, bytes] = {}
        for path in (self._out, self._earlier, self.part):
            found |= _lines(path, inputs)
        if found:
            draft = self._earlier.with_suffix(".tmp")
            draft.write_bytes(b"".join(found.get(number, b"") + b"\n" for number in range(max(found) + 1)))
            draft.replace(self._earlier)
        return found

    def finish(self) -> None:
        """All are done."""
        self.part.replace(self._out)
        self._earlier.unlink(missing_ok=True)


def _lines(path: Path, inputs: Sequence[str]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for number, line in enumerate(lines[: len(inputs)]):
        try:
            result = msgspec.json.decode(line, type=Result)
        except msgspec.DecodeError:
            continue  # the last line of a run that was cut, or one that is still to be made
        if result.input != inputs[number]:
            said = inputs[number][:60]
            raise UsageError(f"{path} is of other inputs: its line {number + 1} is not of {said!r}.")
        if result.error is None:
            found[number] = line
    return found
