"""Runs one agent on the task, through a gateway of its own, before scripted providers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.agents.agents import CHAT, MESSAGES, MODELS, RESPONSES, Agent, Place, environment
from tests.agents.tap import RejectingProxy, Request, Tap
from tests.agents.task import missing, prepare
from tests.agents.upstream import ChatUpstream, MessagesUpstream, Play, ResponsesUpstream
from tests.e2e.harness import Gateway
from tests.fakes.provider import FakeProvider, Wire

LIMIT_SECONDS = 240.0
SAYS_FAILURE = re.compile(r"error|fail|overload|unavailable|interrupt|disconnect|terminated|aborted|rate.?limit", re.I)


@dataclass
class Outcome:
    """The result of one run. `verdict` is `finished`, `reported`, `silent` or `hung`."""

    agent: str
    dialect: str
    upstream: str
    fault: str
    verdict: str
    detail: str = ""
    seconds: float = 0.0
    status: int | None = None
    output: str = ""
    streams: set[bool] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    """Bodies of the requests at the provider."""
    log: str = ""


def settings(upstream: str, name: str, address: str) -> str:
    """Return the configuration of the gateway: one provider with one model, which answers to `name`."""
    model = MODELS[upstream]
    models = f'models = [{{ id = "{model}", context_window = 200000, max_output_tokens = 64000 }}]\n'
    alias = f'[[aliases]]\nname = "{name}"\nmodel = "{model}"\n' if name != model else ""
    if upstream == CHAT:
        models = f'base_url = "{address}/v1"\napi_key_env = "VENDOR_API_KEY"\n{models}'
    provider = {CHAT: "vendor", MESSAGES: "anthropic", RESPONSES: "openai"}[upstream]
    return f'[[providers]]\nname = "{provider}"\n{models}\n{alias}'


def run(agent: Agent, dialect: str, upstream: str, fault: str = "", *, direct: bool = False) -> Outcome:
    """Run the agent and return what came of it. `direct` leaves the gateway out."""
    wires: dict[str, Callable[[Play], Wire]] = {
        CHAT: ChatUpstream,
        MESSAGES: MessagesUpstream,
        RESPONSES: ResponsesUpstream,
    }
    model = agent.model(dialect, upstream)
    with ExitStack() as stack:
        # A process that has just been killed can still write while the folder is deleted.
        folders = tempfile.TemporaryDirectory(prefix="svc-agents-", ignore_cleanup_errors=True)
        root = Path(stack.enter_context(folders))
        home, folder, gateway_home = (root / name for name in ("home", "task", "gateway"))
        for made in (home, folder, gateway_home):
            made.mkdir()
        prepare(folder)
        play = Play(folder, fault)
        fake = stack.enter_context(FakeProvider(wires[upstream](play), key="sk-upstream-secret"))
        env = {
            CHAT: {"VENDOR_API_KEY": fake.key},
            RESPONSES: {"PROVIDER_A_API_KEY": fake.key, "PROVIDER_A_BASE_URL": f"{fake.address}/v1"},
            MESSAGES: {"PROVIDER_B_API_KEY": fake.key, "PROVIDER_B_BASE_URL": fake.address},
        }[upstream]
        gateway = Gateway(gateway_home, env=env, config=settings(upstream, model, fake.address))
        if not direct:
            gateway.start(60)
            stack.callback(gateway.stop)
        tap = stack.enter_context(Tap(fake.port if direct else gateway.port))
        proxy = stack.enter_context(RejectingProxy())
        key = fake.key if direct else gateway.key
        place = Place(f"http://127.0.0.1:{tap.port}", key, model, dialect, home, folder)
        outcome = Outcome(agent.name, dialect, upstream, fault, "hung")
        began = time.monotonic()
        _run_command(agent, place, proxy.url, outcome)
        outcome.seconds = time.monotonic() - began
        outcome.hosts = proxy.hosts
        outcome.requests = tap.requests()
        outcome.complaints = list(fake.complaints)
        own = [one for one in outcome.requests if one.path.split("?")[0] == dialect]
        outcome.streams = {b'"stream":true' in one.body.replace(b" ", b"") for one in own}
        outcome.log = gateway.log
        outcome.received = [seen.body for seen in fake.requests]
        _judge(outcome, play, folder)
        return outcome


def _run_command(agent: Agent, place: Place, proxy: str, outcome: Outcome) -> None:
    """Run the agent in a process group of its own, which ends with the agent."""
    log = place.home / "output.txt"
    (place.home / ".svc").mkdir()
    (place.home / ".svc" / "api_key").write_text(place.key, encoding="utf-8")
    with log.open("wb") as output:
        process = subprocess.Popen(
            agent.start(place),
            cwd=place.folder,
            env=environment(agent, place, proxy),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            outcome.status = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            outcome.status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            _end_daemons(place.home)
    outcome.output = log.read_text(encoding="utf-8", errors="replace")


def _end_daemons(home: Path) -> None:
    """End the processes that an agent has left in sessions of their own. They have its home folder."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"HOME={home}".encode() in environ.read_bytes().split(b"\0"):
                os.kill(int(environ.parent.name), signal.SIGKILL)


def _judge(outcome: Outcome, play: Play, folder: Path) -> None:
    """Set the verdict: the task is done with status 0, or the agent says that it failed, or it does not say so."""
    undone = missing(folder)
    if outcome.status is None:
        outcome.detail = f"it ran for more than {LIMIT_SECONDS:.0f} s"
    elif outcome.status == 0 and not undone:
        outcome.verdict = "finished"
    elif outcome.status != 0 or SAYS_FAILURE.search(outcome.output):
        outcome.verdict = "reported"
        outcome.detail = undone
    else:
        outcome.verdict = "silent"
        outcome.detail = undone
    if play.fault and not play.occurred:
        outcome.detail += " (the fault did not occur)"
