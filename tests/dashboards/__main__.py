"""Executes every query of the dashboards and alert rules: `python -m tests.dashboards`, or `make dashboards-check`.

A real Prometheus scrapes a gateway and a registry under load. No query may be empty. `promtool` checks and tests the
rules. Both programs come from Debian's package `prometheus`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx2
import websockets.exceptions
import websockets.sync.client
import yaml

from tests.e2e.harness import CLAUDE, GPT, KEY, SVC, Gateway, environment, provider_environment
from tests.fakes import anthropic_wire, openai_wire
from tests.fakes.collector import Collector
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.fakes.script import answer
from tests.speech.material import make_voices

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "deploy" / "prometheus" / "svc.rules.yml"
RULE_TESTS = ROOT / "deploy" / "prometheus" / "svc.rules.test.yml"
LOAD_SECONDS = 20.0
RATE_INTERVAL = "15s"
CONFIG = f"""
[routing]
retries = 1
[routing.fallbacks]
"{GPT}" = ["{CLAUDE}"]
[limits]
rpm = 300
[cache]
enabled = true
"""
COMPARISON = re.compile(r" [<>] [0-9.]+$")
"""The end of an alert's expression. Without it, the expression has a value even if nothing is wrong."""


def main() -> int:
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        print("prometheus is missing; install it, for example with: apt-get install prometheus", file=sys.stderr)
        return 1
    for arguments in (["check", "rules", str(RULES)], ["test", "rules", str(RULE_TESTS)]):
        subprocess.run(["promtool", *arguments], check=True, timeout=60)
    with tempfile.TemporaryDirectory(prefix="svc-dashboards-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        gateway = stack.enter_context(gateway_under_load(folder))
        registry = stack.enter_context(registry_process(folder))
        address = stack.enter_context(prometheus(folder, [f"127.0.0.1:{gateway.port}", registry]))
        time.sleep(LOAD_SECONDS)
        results = [(title, query, ask(address, query)) for title, query in queries()]
    failed = [(title, query, found) for title, query, found in results if not found]
    for title, query, _ in failed:
        print(f"no value: {title}: {query}", file=sys.stderr)
    print(f"{len(results) - len(failed)} of {len(results)} queries have values")
    return 1 if failed else 0


def queries() -> Iterator[tuple[str, str]]:
    """Yield title and query of each panel and alert."""
    for path in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"].replace("$__rate_interval", RATE_INTERVAL)
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], COMPARISON.sub("", rule["expr"])


def ask(address: str, query: str) -> list[object]:
    """Return the values of a query. A value that is not a number counts as none."""
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as response:
        result = json.load(response)["data"]["result"]
    return [each for each in result if each["value"][1] != "NaN"]


@contextlib.contextmanager
def gateway_under_load(folder: Path) -> Iterator[Gateway]:
    """A gateway with two providers, one of which fails now and then, a cache, limits, traces, and speech."""
    with contextlib.ExitStack() as stack:
        fakes = {
            "A": stack.enter_context(FakeProvider(openai_wire.OpenAIWire(), key="a")),
            "B": stack.enter_context(FakeProvider(anthropic_wire.AnthropicWire(), key="b")),
        }
        collector = stack.enter_context(Collector())
        scripts = itertools.cycle([answer(500, openai_wire.error("down"))] + [answer(200, openai_wire.chat())] * 3)
        fakes["A"].plays(*itertools.islice(scripts, 20_000))
        home = folder / "gateway"
        home.mkdir()
        env = {
            **provider_environment(fakes),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "SVC_REGISTRY_ROOT": str(make_voices()),
        }
        gateway = Gateway(home, env={**env, "OTEL_BSP_SCHEDULE_DELAY": "500"}, config=CONFIG).start()
        stack.callback(gateway.stop)
        stopping = threading.Event()
        for target in (send_requests, send_speech):
            thread = threading.Thread(target=target, args=(gateway, stopping))
            thread.start()
            stack.callback(thread.join, 60)
        stack.callback(stopping.set)
        yield gateway


def send_requests(gateway: Gateway, stopping: threading.Event) -> None:
    """Send a mixture of requests, more than the limit allows."""
    for number in itertools.count():
        if stopping.wait(0.02):
            return
        content = "again" if number % 5 == 0 else f"number {number}"
        model = (GPT, GPT, CLAUDE)[number % 3]
        gateway.chat(model, messages=[{"role": "user", "content": content}], temperature=0)
        if number % 10 == 0:
            gateway.request("POST", "/v1/audio/transcriptions", {})


def send_speech(gateway: Gateway, stopping: threading.Event) -> None:
    """Speak a text, transcribe the audio as an upload, and as a live session."""
    authorization = {"authorization": f"Bearer {KEY}"}
    address = f"127.0.0.1:{gateway.port}/v1/audio"
    with httpx2.Client(headers=authorization, timeout=60, trust_env=False) as client:
        while not stopping.wait(0.5):
            body = {"model": "espeak-en-us", "input": "One two three.", "voice": "alloy", "response_format": "wav"}
            audio = client.post(f"http://{address}/speech", json=body)
            client.post(f"http://{address}/transcriptions", files={"file": ("a.wav", audio.content)})
            with contextlib.suppress(websockets.exceptions.ConnectionClosed):  # the requests above can use up the limit
                transcribe_live(f"ws://{address}/transcriptions/stream", authorization)


def transcribe_live(url: str, headers: dict[str, str]) -> None:
    """Send a second of silence."""
    with websockets.sync.client.connect(url, additional_headers=headers, proxy=None) as session:
        session.send(bytes(32_000))
        for kind in ("flush", "close"):
            session.send(json.dumps({"type": kind}))
        while json.loads(session.recv(60))["type"] != "closed":
            pass


@contextlib.contextmanager
def registry_process(folder: Path) -> Iterator[str]:
    """A registry. Yields its host and port."""
    home = folder / "registry"
    home.mkdir()
    port = closed_port()
    command = [SVC, "registry", "serve", "--port", str(port)]
    process = subprocess.Popen(command, env=environment(home), cwd=home, stdout=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """Prometheus, which scrapes the targets once a second. Yields its address."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "svc", "static_configs": [{"targets": targets}]}],
    }
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{closed_port()}"
    options = [f"--config.file={path}", f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={address}"]
    process = subprocess.Popen(["prometheus", *options, "--log.level=error"], cwd=folder)
    try:
        deadline = time.monotonic() + 60
        while not is_ready(f"http://{address}/-/ready"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("prometheus did not start")
            time.sleep(0.2)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
