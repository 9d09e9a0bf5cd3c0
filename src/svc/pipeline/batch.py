"""Many inputs: bounded parallelism, a JSON line each in the order of the inputs, resumable. A failure stops none."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from svc.errors import InvalidRequest, SvcError, UsageError
from svc.pipeline.orchestrator import Failure, Orchestrator, Result

AHEAD = 4
"""For each worker, so many inputs may be done before the one whose line is next."""


def run_many(
    orchestrator: Orchestrator,
    inputs: Sequence[str],
    *,
    out: Path | None,
    keep: Path | None,
    jobs: int,
    resume: bool,
    watch: Callable[[int, Result], None],
) -> int:
    """How many inputs failed. Lines go to `out`, else to standard output; `keep` gets a folder for each input.

    With `resume`, lines of `out` without an error are kept as they are, when they belong to the same inputs.
    """
    kept = _kept(out, inputs) if resume and out is not None else {}
    failed = 0
    with ThreadPoolExecutor(jobs, thread_name_prefix="pipeline") as pool:

        def work(number: int) -> Result:
            return _run(orchestrator, inputs[number], keep / f"{number + 1:05}" if keep else None)

        lines = _in_order(pool, work, len(inputs), kept, jobs * AHEAD)
        partial = _partial(out) if out is not None else None
        sink = partial.open("wb") if partial is not None else sys.stdout.buffer
        try:
            for number, line in enumerate(lines, 1):
                result = msgspec.json.decode(line, type=Result)
                failed += result.error is not None
                sink.write(line + b"\n")
                sink.flush()
                watch(number, result)
        finally:
            if partial is not None:
                sink.close()
        if partial is not None and out is not None:  # all are done; a run that was cut leaves both files to `resume`
            partial.replace(out)
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


def _run(orchestrator: Orchestrator, given: str, keep: Path | None) -> Result:
    """One input; what is wrong with the input itself is a failure of this line alone."""
    try:
        last = keep / "output.wav" if keep is not None and orchestrator.gives == "audio" else None
        return orchestrator.run(given, out=last, keep=keep)
    except SvcError as error:
        code = InvalidRequest.code if isinstance(error, UsageError) else error.code
        return Result(orchestrator.pipeline.name, given, None, [], Failure(None, code, error.message))


def _kept(out: Path, inputs: Sequence[str]) -> dict[int, bytes]:
    """Lines of the run before that need not be made again. Raises UsageError when they are of other inputs."""
    found: dict[int, bytes] = {}
    for path in (out, _partial(out)):  # the second is what a run that was killed has left
        lines = path.read_bytes().splitlines() if path.is_file() else []
        for number, line in enumerate(lines[: len(inputs)]):
            try:
                result = msgspec.json.decode(line, type=Result)
            except msgspec.DecodeError:
                continue  # the last line of a run that was cut
            if result.input != inputs[number]:
                said = inputs[number][:60]
                raise UsageError(f"{path} is of other inputs: its line {number + 1} is not of {said!r}.")
            if result.error is None:
                found[number] = line
    return found


def _partial(out: Path) -> Path:
    return out.with_name(f"{out.name}.part")
