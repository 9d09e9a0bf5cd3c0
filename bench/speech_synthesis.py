"""Measures the time to the first audio of `POST /v1/audio/speech`: python -m bench.speech_synthesis [--runs N]

The voices are loaded before. The gateway and its voices run on one core, and the client on another if there is one.
The script prints the load of the machine, since other processes on the core of the voices distort the figures. With
the priority of `chrt -r 1` the core is as good as idle.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import httpx2
from tests.speech import material
from tests.speech.gateway import KEY, run_gateway

TEXTS = {
    "short": "Good morning.",
    "sentence": "The quick brown fox jumps over the lazy dog.",
    "paragraph": "Please note that the meeting, which was planned for Monday, has been moved to the following Wednesday "
    "because of the holiday. Everybody is invited. The agenda will follow in the next days.",
}
PCM_BYTES_PER_SECOND = 48_000


def measure(client: httpx2.Client, model: str, text: str, response_format: str) -> tuple[float, float, int]:
    """Return the seconds to the first audio, the seconds to the end, and the bytes."""
    body = {"model": model, "input": text, "voice": "alloy", "response_format": response_format}
    began = time.perf_counter()
    first, size = 0.0, 0
    with client.stream("POST", "/v1/audio/speech", json=body) as response:
        response.raise_for_status()
        for chunk in response.iter_raw():
            first = first or time.perf_counter() - began
            size += len(chunk)
    return first, time.perf_counter() - began, size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    voices = material.make_voices()
    with tempfile.TemporaryDirectory() as folder:
        os.sched_setaffinity(0, cores[:1])  # the gateway and its child processes inherit it
        with run_gateway(Path(folder), SVC_REGISTRY_ROOT=str(voices)) as gateway:
            os.sched_setaffinity(0, cores[-1:])
            client = httpx2.Client(
                base_url=gateway.address, headers={"authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False
            )
            print("| Voice | Text | Format | First audio p50 ms | p95 ms | Seconds of audio per second |")
            print("|---|---|---|---:|---:|---:|")
            for model in ("piper-joe-en-us", "espeak-en-us"):
                measure(client, model, TEXTS["short"], "pcm")
                for response_format in ("pcm", "wav", "mp3", "opus"):
                    for name, text in TEXTS.items():
                        runs = [measure(client, model, text, response_format) for _ in range(arguments.runs)]
                        firsts = sorted(run[0] * 1000 for run in runs)
                        p95 = firsts[min(len(firsts) - 1, round(0.95 * len(firsts)))]
                        speed = statistics.median(run[2] / PCM_BYTES_PER_SECOND / run[1] for run in runs)
                        factor = f"{speed:.0f}" if response_format == "pcm" else ""
                        print(
                            f"| `{model}` | {name}, {len(text)} characters | {response_format} "
                            f"| {statistics.median(firsts):.0f} | {p95:.0f} | {factor} |"
                        )


if __name__ == "__main__":
    main()
