"""A stop signal is never lost, whenever it arrives."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import pytest
from uvicorn.loops.auto import auto_loop_factory

from svc.app.stop_signals import StopSignals


@pytest.fixture(autouse=True)
def original_handlers() -> Iterator[None]:
    """Handle signals as before after the test: a process that has stopped ignores some."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def kill_self(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)
    sum(count for count in range(100))  # the handler runs during this loop


def run_until_stopped(stop: StopSignals, main: Callable[[], object]) -> bool:
    """Run `main` on the gateway's event loop and return whether it was cancelled."""
    cancelled = []

    async def serve() -> None:
        try:
            main()
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            cancelled.append(True)
            await asyncio.sleep(0)  # cleanup of a server awaits, too
            raise

    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(asyncio.wait_for(stop.run(serve()), 10))
    return bool(cancelled)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_in_loop_callback_cancels_startup(number: int) -> None:
    with StopSignals() as stop:
        assert run_until_stopped(stop, lambda: asyncio.get_running_loop().call_soon(kill_self, number))


def test_stop_signal_in_task_cancels_startup() -> None:
    with StopSignals() as stop:
        assert run_until_stopped(stop, kill_self)


def test_stop_signal_after_the_loop_is_closed_is_ignored() -> None:
    with StopSignals() as stop:
        assert run_until_stopped(stop, kill_self)
        kill_self()


def test_stop_signal_before_loop_prevents_startup() -> None:
    with StopSignals() as stop:
        kill_self()
        assert stop.is_stop_requested
        assert not run_until_stopped(stop, lambda: None)


def test_stop_signal_in_finalizer_cancels_startup() -> None:
    class Dying:
        def __del__(self) -> None:
            kill_self()

    with StopSignals() as stop:
        assert run_until_stopped(stop, lambda: Dying() and None)


def test_stop_signal_second_does_not_cancel_cleanup() -> None:
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


def test_stop_signals_while_serving_are_passed_to_server() -> None:
    received: list[int] = []

    async def serve() -> None:
        stop.set_callback(received.append)
        kill_self(signal.SIGINT)
        kill_self(signal.SIGINT)
        while len(received) < 2:
            await asyncio.sleep(0.01)

    with StopSignals() as stop, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(asyncio.wait_for(stop.run(serve()), 10))
    assert received == [signal.SIGINT, signal.SIGINT]


def test_stop_signal_before_callback_is_set_is_delivered_to_it() -> None:
    received: list[int] = []

    async def serve() -> None:
        kill_self()
        stop.set_callback(received.append)

    with StopSignals() as stop, asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(stop.run(serve()))
    assert received[:1] == [signal.SIGTERM]


def test_stop_signals_exit_restores_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_stop_signals_exit_after_stop_ignores_another_sigterm() -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals():
        kill_self()
    kill_self()
    assert signal.getsignal(signal.SIGINT) is before


def test_stop_signals_cancellation_without_signal_is_raised() -> None:
    async def serve() -> None:
        raise asyncio.CancelledError

    with StopSignals() as stop, asyncio.Runner() as runner, pytest.raises(asyncio.CancelledError):
        runner.run(stop.run(serve()))
