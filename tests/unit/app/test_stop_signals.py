"""A signal to stop is never lost, at whatever moment it comes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest
from uvicorn.loops.auto import auto_loop_factory

from svc.app.stop_signals import StopSignals


def kill_self(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)
    sum(count for count in range(100))  # the handler runs between two of these steps


def run_until_stopped(stop: StopSignals, main: Callable[[], object]) -> bool:
    """Whether `main` was cancelled; the loop is the gateway's."""
    cancelled = []

    async def serve() -> None:
        try:
            main()
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            cancelled.append(True)
            await asyncio.sleep(0)  # what ends the parts of a server waits, too
            raise

    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(asyncio.wait_for(stop.run(serve()), 10))
    return bool(cancelled)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_inside_a_callback_of_the_loop_cancels_the_start(number: int) -> None:
    with StopSignals() as stop:
        assert run_until_stopped(stop, lambda: asyncio.get_running_loop().call_soon(kill_self, number))


def test_signal_inside_the_task_cancels_the_start() -> None:
    with StopSignals() as stop:
        assert run_until_stopped(stop, kill_self)


def test_signal_before_the_loop_ends_the_start_before_it_begins() -> None:
    with StopSignals() as stop:
        kill_self()
        assert stop.is_stop_requested
        assert not run_until_stopped(stop, lambda: None)


def test_signal_inside_a_finalizer_cancels_the_start() -> None:
    class Dying:
        def __del__(self) -> None:
            kill_self()

    with StopSignals() as stop:
        assert run_until_stopped(stop, lambda: Dying() and None)


def test_second_signal_does_not_cancel_what_closes_the_parts() -> None:
    closed = []

    async def serve() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            kill_self()
            await asyncio.sleep(0.05)
            closed.append(True)

    with StopSignals() as stop, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.get_loop().call_later(0.02, kill_self)
        runner.run(stop.run(serve()))
    assert closed == [True]


def test_signals_go_to_the_running_server() -> None:
    got: list[int] = []

    async def serve() -> None:
        stop.set_callback(got.append)
        kill_self(signal.SIGINT)
        kill_self(signal.SIGINT)
        while len(got) < 2:
            await asyncio.sleep(0.01)

    with StopSignals() as stop, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(asyncio.wait_for(stop.run(serve()), 10))
    assert got == [signal.SIGINT, signal.SIGINT]


def test_signal_between_the_start_and_the_server_stops_the_server_at_once() -> None:
    got: list[int] = []

    async def serve() -> None:
        kill_self()
        stop.set_callback(got.append)

    with StopSignals() as stop, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(stop.run(serve()))
    assert got[:1] == [signal.SIGTERM]


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_cancellation_that_no_signal_asked_for_is_raised() -> None:
    async def serve() -> None:
        raise asyncio.CancelledError

    with StopSignals() as stop, asyncio.Runner() as runner, pytest.raises(asyncio.CancelledError):
        runner.run(stop.run(serve()))
