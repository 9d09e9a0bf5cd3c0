"""Measures for docs/explanation/speech.md: python bench/speech.py [accuracy] [live] [--model NAME] [--clips DIR].

accuracy: every English clip through the live path at full speed: word errors, and stable text that was retracted.
live:     4, 8 and 16 concurrent speakers in real time through a gateway, whose only worker is bound to one core.
--clips:  a folder with more clips, described by a manifest.json of {id, wav, text, lang}.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.speech import material  # noqa: E402
from tests.speech.gateway import Gateway, LiveClient, check_stable_prefixes, session  # noqa: E402

from svc import plugins, settings  # noqa: E402
from svc.app import gateway as app  # noqa: E402
from svc.app.listeners import listen  # noqa: E402
from svc.speech import ipc  # noqa: E402
from svc.speech.model import detect_model  # noqa: E402
from svc.speech.recognition_stream import RecognitionStream  # noqa: E402
from svc.speech.vad import VoiceActivityDetector, VoiceActivityModel  # noqa: E402

FRAME = 1600
"""Bytes per frame (50 ms)."""
PLACES = 8
"""Session limit of the worker, unless more speakers are requested."""
PATIENCE = 30
"""Timeout for a final, in seconds."""
LOAD_PATIENCE = 120
"""Timeout for loading a model, in seconds."""
BEGIN_SECONDS = 2
"""Every speaker starts within these seconds, so that a run of this length has something to measure."""
READ = ("beckett", "two-cities", "librivox-0870", "librivox-0880")
"""Clips of read speech."""


TABLE = ("sessions", "first p50 s", "first p95 s", "final p50 s", "final p95 s", "partials/s", "busy %", "retracted")
"""Columns of the table of live sessions."""


def clips(more: Path | None) -> dict[str, tuple[str, bytes]]:
    """Return text and audio of every English clip."""
    paths, texts = material.make_clips(), dict(material.TEXTS)
    if more is not None:
        for entry in json.loads((more / "manifest.json").read_text()):
            if entry["lang"] == "en":
                paths[entry["id"]], texts[entry["id"]] = more / entry["wav"], entry["text"]
    return {name: (text, material.read_pcm(paths[name])) for name, text in sorted(texts.items())}


def accuracy(spoken: dict[str, tuple[str, bytes]], name: str, of_folder: set[str]) -> None:
    """Run the recognition of a worker, without sockets and clocks. `of_folder` names the clips of `--clips`."""
    model = detect_model(material.make_model(name))
    engine = plugins.load("speech.engines", model.engine).load(model)
    detector = VoiceActivityDetector(VoiceActivityModel(model.files["vad"]))
    language = "en" if "en" in model.languages else None
    totals = {"read": [0, 0], "all": [0, 0], **({"--clips": [0, 0]} if of_folder else {})}
    retracted, cpu_seconds, seconds = 0, 0.0, 0.0
    print(f"{name}\n{'clip':22} {'errors':>6} {'words':>6} {'retracted':>9} {'hypotheses':>10} {'CPU per s':>9}")
    for clip, (text, audio) in spoken.items():
        out: list[Any] = []
        detector.reset()
        voice = RecognitionStream(1, engine, detector, emit=out.append, language=language)
        begun = time.process_time()
        for place in range(0, len(audio), FRAME):
            voice.enqueue(audio[place : place + FRAME])
            _work(voice)
        voice.enqueue(ipc.FlushStream(1))
        _work(voice)
        cpu = time.process_time() - begun
        cpu_seconds, seconds = cpu_seconds + cpu, seconds + len(audio) / 32000
        done = out[-1]
        heard = [message for message in out if isinstance(message, ipc.RecognitionHypothesis)]
        count, errors = len(material.words(text)), material.count_word_errors(text, done.text)
        for total in ("all", *(["read"] if clip in READ else []), *(["--clips"] if clip in of_folder else [])):
            totals[total][0] += errors
            totals[total][1] += count
        taken = _taken_back([(message.text, message.is_stable) for message in heard] + [(done.text, True)])
        retracted += taken
        print(f"{clip:22} {errors:6} {count:6} {taken:9} {done.chunk_count:10} {cpu * 32000 / len(audio):9.2f}")
    for total, (errors, count) in totals.items():
        print(f"WER {total}: {100 * errors / count:.1f} % ({errors} of {count} words)")
    print(f"retracted: {retracted}; CPU per second of audio: {cpu_seconds / seconds:.3f} s")


def _work(voice: RecognitionStream) -> None:
    while voice.advance(1 << 20) or voice.pending_work():
        if voice.pending_work():
            voice.run_work_inline()


def _taken_back(messages: list[tuple[str, bool]]) -> int:
    stable, count = "", 0
    for text, is_stable in messages:
        count += not text.startswith(stable)
        stable = text if is_stable else stable
    return count


def _speech(audio: bytes) -> tuple[bytes, float]:
    """Return a clip without trailing silence, and the second at which speech begins in it."""
    samples = np.frombuffer(audio, "<i2").astype(np.float32) / 32768
    frames = samples[: len(samples) // 320 * 320].reshape(-1, 320)
    loud = np.flatnonzero(np.sqrt((frames**2).mean(axis=1)) > 0.015)
    return audio[: (int(loud[-1]) + 3) * 640], float(loud[0]) * 0.02


class Person:
    """Speaks clips in real time, and records when messages arrive."""

    def __init__(self, client: LiveClient, spoken: list[bytes], seed: int) -> None:
        self.client, self.spoken, self.random = client, spoken, random.Random(seed)
        self.first: list[float] = []
        self.final: list[float] = []
        self.final_after_pause: list[float] = []
        self.partials = 0
        self.seconds = 0.0
        self._onset = 0.0
        self._heard_any = False
        self._final = asyncio.Event()

    async def listen(self) -> None:
        while True:
            message = json.loads(await self.client.socket.recv())
            self.client.received.append(message)
            now = time.monotonic()
            if message["type"] == "partial":
                self.partials += not message["is_stable"]
                if not self._heard_any:
                    self._heard_any = True
                    self.first.append(now - self._onset)
            elif message["type"] == "final":
                self._final.set()

    async def speak(self, until: float) -> None:
        await asyncio.sleep(self.random.random() * BEGIN_SECONDS)
        turn = self.random.randrange(2)
        while time.monotonic() < until:
            audio, onset = _speech(self.random.choice(self.spoken))
            turn += 1
            pause = bytes(9600) if turn % 2 else b""  # 300 ms or none
            self._final.clear()
            begun = time.monotonic()
            self._onset, self._heard_any = begun + onset, False
            everything = audio + pause
            for place in range(0, len(everything), FRAME):
                frame = everything[place : place + FRAME]
                await asyncio.sleep(max(0.0, begun + (place + len(frame)) / 32000 - time.monotonic()))
                await self.client.socket.send(frame)
            self.seconds += len(audio) / 32000 - onset
            flushed_at = time.monotonic()
            await self.client.send_message(type="flush")
            await asyncio.wait_for(self._final.wait(), PATIENCE)
            (self.final_after_pause if pause else self.final).append(time.monotonic() - flushed_at)
            await asyncio.sleep(0.2)


async def live(gateway: Gateway, spoken: list[bytes], people: int, seconds: float) -> None:
    """Run this many speakers for this long."""
    async with contextlib.AsyncExitStack() as stack:
        crowd = []
        for seed in range(people):
            client = await stack.enter_async_context(session(gateway))
            await client.send_message(type="config")
            await client.wait_for("ready", timeout=LOAD_PATIENCE)
            crowd.append(Person(client, spoken, seed))
        (worker,) = gateway.workers()
        _bind(worker, 0)
        begun = time.monotonic()
        measuring = asyncio.create_task(_busy(worker, begun + BEGIN_SECONDS, begun + seconds))
        listening = [asyncio.create_task(person.listen()) for person in crowd]
        speaking = [asyncio.create_task(person.speak(begun + seconds)) for person in crowd]
        try:
            await asyncio.gather(*speaking)
        finally:
            wall = time.monotonic() - begun
            for task in (*listening, *speaking):
                task.cancel()
            await asyncio.gather(*listening, *speaking, return_exceptions=True)
            busy = await measuring
        for person in crowd:
            check_stable_prefixes(person.client.received)
        rate = sum(person.partials for person in crowd) / sum(person.seconds for person in crowd)
        print(
            f"{people} sessions, {wall:.0f} s: {rate:.2f} partials per second of speech each, load {os.getloadavg()[0]:.1f}"
        )
        samples = {
            title: [value for person in crowd for value in getattr(person, title)]
            for title in ("first", "final", "final_after_pause")
        }
        for title, values in samples.items():
            _print(title, values)
        status = Path(f"/proc/{worker}/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
        print(f"  worker: {busy:.0f} % of its core while all speak, {peak:.0f} MB at most")
        first, final = (_quantiles(samples[title]) for title in ("first", "final"))
        row = [f"{value:.2f}" for value in (*first, *final, rate)]
        print("|", " | ".join(TABLE), "|")
        print("|", " | ".join([str(people), *row, f"{busy:.0f}", "0"]), "|")


async def _busy(worker: int, begin: float, end: float) -> float:
    """Return the share of a core that the worker uses between two times of the monotonic clock, in percent."""
    await asyncio.sleep(begin - time.monotonic())
    before, since = _cpu(worker), time.monotonic()
    await asyncio.sleep(max(1.0, end - since))
    return 100 * (_cpu(worker) - before) / (time.monotonic() - since)


def _bind(process: int, core: int) -> None:
    """Bind every thread to one core. Real-time threads ignore niceness, so their priority is raised by that amount."""
    policy = os.sched_getscheduler(process)
    for thread in Path(f"/proc/{process}/task").iterdir():
        number = int(thread.name)
        os.sched_setaffinity(number, {core})
        if policy == os.SCHED_RR:
            os.sched_setscheduler(number, policy, os.sched_param(20 - os.getpriority(os.PRIO_PROCESS, number)))


def _print(title: str, values: list[float]) -> None:
    if not values:
        print(f"  {title:18} none in this run")
        return
    p50, p95 = _quantiles(values)
    worst = " ".join(f"{1000 * value:.0f}" for value in sorted(values)[-3:])
    print(f"  {title:18} p50 {1000 * p50:5.0f} ms  p95 {1000 * p95:5.0f} ms  ({len(values)}; worst {worst})")


def _quantiles(values: list[float]) -> tuple[float, float]:
    """Return median and 95th percentile."""
    if not values:
        return math.nan, math.nan
    return statistics.median(values), sorted(values)[min(len(values) - 1, round(0.95 * len(values)))]


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def gateway(config: str) -> Iterator[Gateway]:
    """Run a gateway that measures its event loop lag, and prints it on SIGUSR1. It logs to `gateway.log`."""
    home = material.HOME / "bench"
    home.mkdir(parents=True, exist_ok=True)
    (home / "svc.toml").write_text(config)
    environ = {
        **os.environ,
        "SVC_HOME": str(home),
        "SVC_REGISTRY_ROOT": str(material.HOME / "registry"),
        "SVC_API_KEYS": "test-key",
    }
    with (home / "gateway.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, "serve"], env=environ, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
        )
    try:
        assert process.stdout is not None
        yield Gateway(process.stdout.readline().split()[0], process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def lag(gateway: Gateway) -> str:
    """Return the event loop lag since the last call."""
    assert gateway.process.stdout is not None
    gateway.process.send_signal(signal.SIGUSR1)
    return gateway.process.stdout.readline().strip()


def serve() -> None:
    """Run the gateway in this process and measure its loop lag."""
    found = settings.load(os.environ, config=os.environ["SVC_HOME"] + "/svc.toml")
    original = app._serve

    async def probed(*arguments: Any, **named: Any) -> None:
        late: list[float] = []

        def tell() -> None:
            values = sorted(late)
            late.clear()
            print(
                f"loop lag p50 {1000 * values[len(values) // 2]:.1f} ms, "
                f"p99 {1000 * values[int(0.99 * len(values))]:.1f} ms, worst {1000 * values[-1]:.1f} ms",
                flush=True,
            )

        async def probe() -> None:
            while True:
                due = time.monotonic() + 0.005
                await asyncio.sleep(0.005)
                late.append(time.monotonic() - due)

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell)
        probing = asyncio.create_task(probe())
        try:
            await original(*arguments, **named)
        finally:
            probing.cancel()

    app._serve = probed
    app.serve_gateway(found, listen("127.0.0.1", 0), lambda address: print(address, flush=True))


async def crowd(spoken: dict[str, tuple[str, bytes]], model: str, seconds: float, sizes: list[int]) -> None:
    material.make_model(model)  # the gateway does not build the model
    places = max(PLACES, *sizes)
    with gateway(f'[speech]\ndefault_model = "{model}"\nmax_sessions = {places}\n') as running:
        _bind(os.getpid(), 1)
        _bind(running.process.pid, 1)
        await asyncio.sleep(3)
        lag(running)  # discard the lag of the start
        await asyncio.sleep(5)
        print("idle:", lag(running))
        for people in sizes:
            try:
                await live(running, [audio for _, audio in spoken.values() if len(audio) < 15 * 32000], people, seconds)
            except TimeoutError:
                print(f"{people} sessions: the worker does not keep up, no response within {PATIENCE} s")
            print(" ", lag(running))


def _speakers(text: str) -> int:
    """Parse a number of speakers, for argparse."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


def _seconds(text: str) -> float:
    """Parse the length of a run, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (math.isfinite(number) and number >= BEGIN_SECONDS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {BEGIN_SECONDS} or more")
    return number


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["accuracy", "live"])
    parser.add_argument("--model", default="moonshine-tiny-en")
    parser.add_argument("--clips", type=Path)
    parser.add_argument("--alone", action="store_true", help="real-time priority for the worker, on a busy machine")
    parser.add_argument("--seconds", type=_seconds, default=60, help=f"{BEGIN_SECONDS} or more")
    parser.add_argument(
        "--speakers", type=_speakers, nargs="+", default=[4, 8, 16], help="number of concurrent live sessions"
    )
    arguments = parser.parse_args()
    if "serve" in arguments.what:
        serve()
        return
    spoken = clips(arguments.clips)
    if arguments.alone:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    if "accuracy" in arguments.what:
        accuracy(spoken, arguments.model, set(spoken) - set(clips(None)) if arguments.clips else set())
    if "live" in arguments.what:
        asyncio.run(crowd(spoken, arguments.model, arguments.seconds, arguments.speakers))


if __name__ == "__main__":
    main()
