"""Runs a pipeline on many inputs with bounded parallelism. Writes JSON lines in input order and can resume.

A failed input does not stop the others.
"""

from __future__ import annotations

import fcntl
import math
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Protocol

import msgspec

from svc.bundles.disk_space import add_path_to_errors
from svc.errors import InvalidRequest, SvcError, UsageError
from svc.pipeline.definition import DataKind
from svc.pipeline.files import read_input, save_outputs
from svc.pipeline.inputs import output_names
from svc.pipeline.orchestrator import RunError, RunOutcome, RunResult, StageListener
from svc.pipeline.stages.base import StageChunk

MAX_AHEAD_INPUTS_PER_JOB = 4
"""Inputs that may be done before the next line is written, per job."""

MAX_OUTAGE_SECONDS = 60.0
"""How long inputs wait for a gateway that responded before, for example while it restarts."""
OUTAGE_PAUSE_SECONDS = 2.0


class PipelineRunner(Protocol):
    """Runs a pipeline: an `Orchestrator` in this process, or a Ray cluster. Must be thread-safe."""

    @property
    def input_kind(self) -> DataKind: ...

    @property
    def output_kind(self) -> DataKind: ...

    def run(self, input_name: str, input_chunk: StageChunk, on_event: StageListener | None = None) -> RunOutcome: ...


class BatchObserver(Protocol):
    """Gets the progress of a batch. Several threads call it."""

    def on_resumed(self, count: int) -> None: ...

    def on_stage_event(self, number: int, stage: str, event: str) -> None: ...

    def on_input_done(self, number: int, result: RunResult) -> None: ...


class _Outage:
    """Decides which inputs are tried again while the gateway cannot be reached. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._was_reached = False
        self._down_since: float | None = None
        self._stopped = threading.Event()

    def record_reached(self) -> None:
        """Record that an input ended without an outage."""
        with self._lock:
            self._was_reached, self._down_since = True, None

    def wait(self, first_failed_at: float) -> bool:
        """Pause before the next attempt. Returns False if the input must not be tried again.

        That is the case if the gateway was never reached, and if the outage or the input's attempts last too long.
        """
        now = time.monotonic()
        with self._lock:
            self._down_since = now if self._down_since is None else self._down_since
            since = min(self._down_since, first_failed_at)
            if not self._was_reached or now - since > MAX_OUTAGE_SECONDS:
                return False
        warnings.warn(
            f"The gateway cannot be reached. Inputs wait for it, up to {MAX_OUTAGE_SECONDS:g} s.", stacklevel=2
        )
        return not self._stopped.wait(OUTAGE_PAUSE_SECONDS)

    def __enter__(self) -> _Outage:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()


def run_batch(
    runner: PipelineRunner,
    pipeline_name: str,
    inputs: Sequence[str],
    *,
    output_path: Path | None,
    keep_folder: Path | None,
    jobs: int,
    resume: bool,
    observer: BatchObserver,
) -> int:
    """Run all inputs and return the number of inputs that failed.

    Lines go to `output_path`, else to standard output. `keep_folder` gets the output audio of an input under the
    input's name (`talk.wav`), and a folder of that name with the output of each stage.

    With `resume`, lines of `output_path` without an error are kept if they belong to the same inputs. Raises
    UsageError if they do not, or if another run is writing to `output_path`. After KeyboardInterrupt or SystemExit,
    threads of this call may still run inputs.
    """
    with _ResultFile(output_path) if output_path is not None else nullcontext() as result_file:
        return _run_inputs(
            runner, pipeline_name, inputs, result_file, keep_folder, jobs, resume=resume, observer=observer
        )


def _run_inputs(
    runner: PipelineRunner,
    pipeline_name: str,
    inputs: Sequence[str],
    result_file: _ResultFile | None,
    keep_folder: Path | None,
    jobs: int,
    *,
    resume: bool,
    observer: BatchObserver,
) -> int:
    completed_lines = result_file.load_completed(inputs, resume=resume) if result_file is not None else {}
    observer.on_resumed(len(completed_lines))
    failed = 0
    names = output_names(inputs, keep_folder) if keep_folder is not None else []
    with _open_pool(jobs) as pool, _Outage() as outage:

        def work(number: int) -> RunResult:
            listen: StageListener = lambda stage, event, _: observer.on_stage_event(number, stage, event)  # noqa: E731 it is typed so
            folder = keep_folder / names[number] if keep_folder else None
            result = _run_one(runner, pipeline_name, inputs[number], folder, listen, outage)
            observer.on_input_done(number, result)
            return result

        lines = _lines_in_order(pool, work, len(inputs), completed_lines, jobs * MAX_AHEAD_INPUTS_PER_JOB)
        with closing(lines), _open_output(result_file) as output:
            for line in lines:
                failed += msgspec.json.decode(line, type=RunResult).error is not None
                output.write(line + b"\n")
                output.flush()
    if result_file is not None:
        result_file.publish()
    return failed


@contextmanager
def _open_pool(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """Wait for running inputs at the end, but not after an interrupt: no thread can end its input early."""
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="pipeline")
    is_interrupted = False
    try:
        yield pool
    except (KeyboardInterrupt, SystemExit):
        is_interrupted = True
        raise
    finally:
        pool.shutdown(wait=not is_interrupted, cancel_futures=True)


@contextmanager
def _open_output(result_file: _ResultFile | None) -> Iterator[IO[bytes]]:
    """Open the part file, or yield standard output. Raises OSError with the path of the file."""
    if result_file is None:
        yield sys.stdout.buffer
        return
    with add_path_to_errors(result_file.part_path), result_file.part_path.open("wb") as output:
        yield output


def _lines_in_order(
    pool: ThreadPoolExecutor,
    run_input: Callable[[int], RunResult],
    count: int,
    completed_lines: dict[int, bytes],
    max_ahead: int,
) -> Generator[bytes, None, None]:
    pending: deque[Future[RunResult] | bytes] = deque()
    next_number = 0
    try:
        while next_number < count or pending:
            while next_number < count and len(pending) < max_ahead:
                pending.append(
                    completed_lines[next_number]
                    if next_number in completed_lines
                    else pool.submit(run_input, next_number)
                )
                next_number += 1
            first = pending.popleft()
            yield first if isinstance(first, bytes) else msgspec.json.encode(first.result())
    finally:
        for result in pending:
            if isinstance(result, Future):
                result.cancel()


def _run_one(
    runner: PipelineRunner,
    pipeline_name: str,
    input_name: str,
    keep_folder: Path | None,
    on_event: StageListener,
    outage: _Outage,
) -> RunResult:
    """Run one input. An unusable input fails only its own line."""
    try:
        audio_path = (
            keep_folder.with_name(f"{keep_folder.name}.wav")
            if keep_folder is not None and runner.output_kind == "audio"
            else None
        )
        outcome = _run_through_outages(runner, input_name, on_event, outage)
        return save_outputs(outcome, output_path=audio_path, keep_folder=keep_folder)
    except SvcError as error:
        code = InvalidRequest.code if isinstance(error, UsageError) else error.code
        return RunResult(pipeline_name, input_name, None, [], RunError(None, code, error.message))
    except OSError as error:
        message = f"{error.filename or 'a file'}: {error.strerror or error}."
        return RunResult(pipeline_name, input_name, None, [], RunError(None, InvalidRequest.code, message))


def _run_through_outages(
    runner: PipelineRunner, input_name: str, on_event: StageListener, outage: _Outage
) -> RunOutcome:
    """Run one input, and again after an outage."""
    input_chunk, first_failed_at = read_input(input_name, runner.input_kind), math.inf
    while (outcome := runner.run(input_name, input_chunk, on_event)).is_outage:
        first_failed_at = min(first_failed_at, time.monotonic())
        if not outage.wait(first_failed_at):
            return outcome
    outage.record_reached()
    return outcome


class _ResultFile:
    """The result lines, in files from which a run can resume after it was killed, any number of times.

    FILE          the complete result of a run
    FILE.part     the lines of a run in progress, or of one that was killed; locked with flock while in progress
    FILE.kept     the lines of earlier runs that are reused, in their place
    """

    def __init__(self, output_path: Path) -> None:
        output_path.parent.mkdir(parents=True, exist_ok=True)
        self._output_path = output_path
        self.part_path = output_path.with_name(f"{output_path.name}.part")
        self._kept_path = output_path.with_name(f"{output_path.name}.kept")
        self._lock_fd = self._lock_part_file()

    def __enter__(self) -> _ResultFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._holds_part_file() and os.fstat(self._lock_fd).st_size == 0:
            self.part_path.unlink()
        os.close(self._lock_fd)

    def _lock_part_file(self) -> int:
        """Lock the part file. Raises UsageError if another run holds the lock, which its exit releases."""
        while True:
            self._lock_fd = os.open(self.part_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock_fd)
                raise UsageError(
                    f"Another run is writing to {self._output_path}. Wait until it ends, or use another file."
                ) from None
            if self._holds_part_file():
                return self._lock_fd
            os.close(self._lock_fd)  # the other run has just ended: this is its complete result

    def _holds_part_file(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._lock_fd), self.part_path.stat())
        except FileNotFoundError:
            return False

    def load_completed(self, inputs: Sequence[str], *, resume: bool) -> dict[int, bytes]:
        """Return the reusable lines by number. Raises UsageError if they belong to other inputs."""
        if not resume:
            self._kept_path.unlink(missing_ok=True)
            return {}
        completed: dict[int, bytes] = {}
        for path in (self._output_path, self._kept_path, self.part_path):
            completed |= _read_completed_lines(path, inputs)
        if completed:
            draft = self._kept_path.with_suffix(".tmp")
            with add_path_to_errors(draft):
                draft.write_bytes(b"".join(completed.get(number, b"") + b"\n" for number in range(max(completed) + 1)))
            draft.replace(self._kept_path)
        return completed

    def publish(self) -> None:
        """Make the part file the result."""
        self.part_path.replace(self._output_path)
        self._kept_path.unlink(missing_ok=True)


def _read_completed_lines(path: Path, inputs: Sequence[str]) -> dict[int, bytes]:
    completed: dict[int, bytes] = {}
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for number, line in enumerate(lines[: len(inputs)]):
        try:
            result = msgspec.json.decode(line, type=RunResult)
        except msgspec.DecodeError:
            continue  # an incomplete line of a killed run, or a missing one
        if result.input != inputs[number]:
            expected = inputs[number][:60]
            raise UsageError(f"{path} has the results of other inputs: line {number + 1} is not for {expected!r}.")
        if result.error is None:
            completed[number] = line
    return completed
