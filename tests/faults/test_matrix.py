"""The fault matrix. All cells run concurrently against one gateway; the tests check outcome, duration and leaks."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.e2e.harness import Gateway
from tests.e2e.reading import broken_stream, complete_chunks, text_of
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.certificate import certificate, context
from tests.fakes.http_client import Got
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.ports import closed_port, silent_port
from tests.fakes.provider import FakeProvider, Recorded
from tests.fakes.script import Script, answer, sse
from tests.faults.catalogue import CUT, FAULTS, TEXT, UPSTREAMS, WHOLE, Fault, Letter, events, response_body
from tests.faults.page import PAGE, page
from tests.openresponses import validate_events, validate_response

BY_NAME = {fault.name: fault for fault in FAULTS}
GATEWAY = """
[gateway]
connect_timeout = 2
first_byte_timeout = 1
idle_timeout = 1
total_timeout = 4
[routing]
retries = 1
breaker = false
"""
"""All chains share the same fallback providers. On a busy machine, an open breaker would fail unrelated cells.

There, a handshake with a fallback provider can take a second.
"""
AT_ONCE = 12
"""Number of cells that run concurrently."""
SLACK = 3.0
"""Extra seconds allowed on a busy machine."""


Client = Literal["chat", "responses"]
PAIRS: list[tuple[Client, Letter]] = [
    ("chat", "A"),
    ("chat", "B"),
    ("responses", "A"),
    ("responses", "B"),
    ("responses", "R"),
]
"""The client's API, and the upstream."""


@dataclass(frozen=True)
class Cell:
    client: Client
    letter: Letter
    fault: Fault
    stream: bool
    chained: bool

    @property
    def model(self) -> str:
        return model_of(self.client, self.letter, self.fault, self.stream, self.chained)

    def __str__(self) -> str:
        return self.model


@dataclass(frozen=True)
class Outcome:
    """The client's view of one cell."""

    outcome: str
    text: str | None
    attempts: int
    provider: str
    retry: str | None
    request_id: str
    seconds: float


@dataclass(frozen=True)
class Resources:
    """Resources that the gateway holds. Idle pooled connections and their sockets are not counted."""

    tasks: int
    requests: int
    streams: int
    busy: tuple[str, ...]
    """The requests that busy upstream connections serve."""
    connections: int
    sockets: int


CELLS = [
    Cell(client, letter, fault, stream, chained)
    for (client, letter), fault, stream, chained in itertools.product(PAIRS, FAULTS, (False, True), (False, True))
]


def pairs_over(scheme: str) -> list[tuple[Client, Letter]]:
    """Return the pairs to test. TLS is the same for every client."""
    return [(client, letter) for client, letter in PAIRS if scheme == "http" or client == "chat"]


def model_of(client: Client, letter: Letter, fault: Fault, stream: bool, chained: bool) -> str:
    """Each cell has its own model, so that a cooldown after a 429 in one cell does not affect another."""
    chain, form = "chained" if chained else "alone", "stream" if stream else "JSON"
    return f"{UPSTREAMS[letter]}/{fault.name}/{chain}/{form}/{client}"


def other(letter: Letter) -> Letter:
    return "A" if letter == "B" else "B"


class FaultWire:
    """A wire that plays the fault in the model's name. Other models get a normal response."""

    def __init__(self, wire: OpenAIWire | AnthropicWire, letter: Letter) -> None:
        self._wire = wire
        self._letter: Letter = letter

    def refusal(self, seen: Recorded, key: str) -> tuple[str, Script] | None:
        return self._wire.refusal(seen, key)

    def usual(self, seen: Recorded) -> Script:
        request_body = seen.json
        fault = BY_NAME.get(request_body["model"].split("/")[1])
        if fault is not None and fault.plays is not None:
            return fault.plays(self._letter, request_body.get("stream") is True)
        if request_body.get("stream"):
            return sse(events(self._letter))
        return answer(200, response_body(self._letter))


Upstreams = dict[tuple[Letter, str], FakeProvider]
"""By API and `Fault.address`."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificate of every provider that uses TLS."""
    return certificate(tmp_path_factory.mktemp("certificates"), "localhost")


@pytest.fixture(scope="module", params=["http", "https"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def upstreams(scheme: str, file: Path) -> Iterator[Upstreams]:
    tls = context(file) if scheme == "https" else None
    wires: dict[Letter, OpenAIWire | AnthropicWire] = {"A": OpenAIWire(), "B": AnthropicWire(), "R": OpenAIWire()}
    with contextlib.ExitStack() as stack:
        yield {
            (letter, address): stack.enter_context(FakeProvider(FaultWire(wire, letter), key="sk-faulty", tls=tls))
            for letter, wire in wires.items()
            for address in ("fake", "always new")
        }


Matrix = tuple[Gateway, dict[Cell, Outcome], Resources]
"""The gateway, the outcome of each cell, and the gateway's resources beforehand."""


@pytest.fixture(scope="module")
def matrix(upstreams: Upstreams, scheme: str, file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    home = tmp_path_factory.mktemp("faults")
    with silent_port() as silent:
        config = configuration(upstreams, {"closed": closed_port(), "silent": silent}, scheme, pairs_over(scheme))
        env = {"FAULTY_KEY": "sk-faulty", "SSL_CERT_FILE": str(file)}
        started = Gateway(home, env=env, config=config, is_forked=True).start(60)
        assert {send(started, "chat", f"spare/{letter}", True).status for letter in ("A", "B")} == {200}
        before = wait_for_stable_resources(started, upstreams)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            cells = [cell for cell in CELLS if (cell.client, cell.letter) in pairs_over(scheme)]
            seen = dict(zip(cells, pool.map(lambda cell: send_request(started, cell), cells), strict=True))
        yield started, seen, before
        assert started.stop() == 0, started.log
        assert "Traceback" not in started.log
        assert "Task was destroyed" not in started.log
    for fake in upstreams.values():
        # In the "wrong scheme" cells the gateway uses the other scheme.
        assert {text.partition(":")[0] for text in fake.complaints} <= {"not HTTP"}


def configuration(
    upstreams: Upstreams, ports: dict[str, int], usual: str, pairs: Sequence[tuple[Client, Letter]] = PAIRS
) -> str:
    """Each fault has its own provider, so that no two faults share a retry budget or a circuit breaker."""
    tables, chains = [GATEWAY], ["[routing.fallbacks]"]
    for (client, letter), fault in itertools.product(pairs, FAULTS):
        scheme = other_scheme(usual) if fault.address == "wrong scheme" else usual
        fake = upstreams.get((letter, fault.address), upstreams[letter, "fake"])
        port = ports.get(fault.address, fake.port)
        alone, chained = (
            [model_of(client, letter, fault, stream, chained) for stream in (False, True)] for chained in (False, True)
        )
        tables.append(
            provider(f"{UPSTREAMS[letter]}-{len(tables)}", letter, f"{scheme}://localhost:{port}", alone + chained)
        )
        chains += [f"{json.dumps(model)} = [{json.dumps(f'spare/{other(letter)}')}]" for model in chained]
    for letter in UPSTREAMS:
        address = upstreams[letter, "fake"].address
        tables.append(provider(f"spare-{letter.lower()}", letter, address, [f"spare/{letter}"]))
    return "\n".join([tables[0], *chains, *tables[1:]])


def other_scheme(scheme: str) -> str:
    return "http" if scheme == "https" else "https"


def provider(name: str, letter: Letter, address: str, models: list[str]) -> str:
    listed = ", ".join(f"{{ id = {json.dumps(model)} }}" for model in models)
    dialect, path = ("anthropic", "") if letter == "B" else ("openai", "/v1")
    return (
        f'[[providers]]\nname = "{name}"\ndialect = "{dialect}"\nbase_url = "{address}{path}"\n'
        f"responses = {'true' if letter == 'R' else 'false'}\n"
        f'api_key_env = "FAULTY_KEY"\nmodels = [{listed}]\n'
    )


def send(gateway: Gateway, client: Client, model: str, stream: bool) -> Got:
    if client == "chat":
        return gateway.chat(model, stream=stream)
    return gateway.request("POST", "/v1/responses", {"model": model, "input": "Hi", "stream": stream})


def send_request(gateway: Gateway, cell: Cell) -> Outcome:
    started_at = time.monotonic()
    response = send(gateway, cell.client, cell.model, cell.stream)
    seconds = time.monotonic() - started_at
    try:
        outcome, text = READERS[cell.client](response, cell.stream)
    except (AssertionError, ValueError, KeyError) as error:  # reported by the cell's own test
        outcome, text = f"not readable: {error!r}: {response.body[-1000:]!r}", None
    attempts, served_by = int(response.headers["x-svc-attempts"]), response.headers["x-svc-provider"]
    retry = response.headers.get("x-should-retry")
    return Outcome(outcome, text, attempts, served_by, retry, response.headers["x-request-id"], seconds)


def read(response: Got, stream: bool) -> tuple[str, str | None]:
    """Return the outcome in the catalogue's terms, and the text that the client received."""
    assert response.whole
    if response.status != 200:
        return f"{response.status} {response.code}", None
    if not stream:
        return WHOLE, response.json["choices"][0]["message"]["content"]
    if b"[DONE]" in response.body:
        return WHOLE, text_of(complete_chunks(response.body))
    chunks, error = broken_stream(response.body)
    return f"200, then error {error['code']}", text_of(chunks)


def read_response(response: Got, stream: bool) -> tuple[str, str | None]:
    """Return the outcome of a client of the Responses API. Each event has to follow its specification."""
    assert response.whole
    if response.status != 200:
        return f"{response.status} {response.code}", None
    if not stream:
        (item,) = validate_response(response.json).output
        return WHOLE, item.content[0].text
    events = validate_events(response.body)
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    last = events[-1]["response"]
    return WHOLE if last["status"] == "completed" else f"200, then error {last['error']['code']}", text


READERS = {"chat": read, "responses": read_response}


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.client == "chat"], ids=str)
def test_fault_matrix_cell_gives_expected_outcome_and_ledger_entry(matrix: Matrix, cell: Cell) -> None:
    check_cell(matrix, cell)


@pytest.mark.parametrize("scheme", ["http"], indirect=True)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.client == "responses"], ids=str)
def test_fault_matrix_cell_of_responses_gives_expected_outcome_and_ledger_entry(matrix: Matrix, cell: Cell) -> None:
    check_cell(matrix, cell)


def check_cell(matrix: Matrix, cell: Cell) -> None:
    gateway, all_seen, _ = matrix
    fault, seen = cell.fault, all_seen[cell]
    expected = fault.sees(cell.stream, cell.chained)
    assert seen.outcome == expected, ledger(gateway, seen.request_id)
    assert seen.attempts == fault.attempts(cell.stream, cell.chained)
    assert seen.seconds < fault.seconds + SLACK
    if expected == WHOLE:
        assert seen.text == TEXT
        moves = fault.moves_stream if cell.stream else fault.moves_json
        assert seen.provider.startswith("spare") == (cell.chained and moves)
    elif expected == CUT:
        assert seen.text is not None
        assert seen.text.startswith("eins")
    else:
        assert seen.retry == "false"
    ended = {WHOLE: "ok", CUT: "cut"}.get(expected, "error")
    entry = ledger(gateway, seen.request_id)
    assert entry["status"] == ended
    if (entry["attempts"], ended) == (1, "ok"):
        described = [(attempt["outcome"], attempt["connect_ms"] > 0) for attempt in entry["attempts_detail"] or []]
        assert described in ([], [("ok", True)]), "unless a connection was opened, the entry's other fields describe it"
    else:
        outcomes = [(attempt["outcome"], attempt["code"] is None) for attempt in entry["attempts_detail"]]
        last = [("ok", True)] if ended == "ok" else [("error", False)]
        assert outcomes == [("error", False)] * (seen.attempts - 1) + last


def ledger(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """Return the only access log line of a request."""
    lines = [line for line in gateway.logged(f'"request_id":"{request_id}"').splitlines() if request_id in line]
    entries = [json.loads(line) for line in lines if line.startswith('{"request_id"') or '"attempts":' in line]
    assert len(entries) == 1, lines
    return dict(entries[0])


def test_fault_matrix_after_all_cells_leaks_nothing(matrix: Matrix, upstreams: Upstreams) -> None:
    """The figures are sums of non-negative parts: a zero total means zero for each cell."""
    gateway, _, before = matrix
    after = wait_for_stable_resources(gateway, upstreams)
    assert (after.requests, after.streams, after.busy, after.connections) == (0, 0, (), 0)
    assert after.tasks <= before.tasks, "tasks of the startup may have finished"
    assert after.sockets <= before.sockets
    assert gateway.chat("spare/A").status == 200


def wait_for_stable_resources(gateway: Gateway, upstreams: Upstreams) -> Resources:
    """Return the gateway's resources once four consecutive readings agree."""
    readings = [read_resources(gateway, upstreams)]
    while len(readings) < 4 or len({*readings[-4:]}) > 1:
        assert len(readings) < 50, readings[-4:]
        readings.append(read_resources(gateway, upstreams))
    return readings[-1]


def read_resources(gateway: Gateway, upstreams: Upstreams) -> Resources:
    """Read the gateway's resources. The upstreams report which of its connections are idle."""
    page = gateway.request("GET", "/metrics").body.decode()
    time.sleep(0.1)  # the connection of the metrics request closes meanwhile
    connections = [one for fake in upstreams.values() for one in list(fake.connections)]
    sockets = [one for one in Path(f"/proc/{gateway.process.pid}/fd").iterdir() if "socket:" in str(one.resolve())]
    return Resources(
        tasks=gauge(page, "svc_tasks"),
        requests=gauge(page, "svc_open_requests"),
        streams=gauge(page, "svc_open_streams"),
        busy=tuple(sorted(one.serves for one in connections if one.busy)),
        connections=gauge(page, "svc_upstream_connections") - len(connections),
        sockets=len(sockets) - len(connections),
    )


def gauge(page: str, name: str) -> int:
    """Return a value from the metrics page."""
    return int(float(page.partition(f"\n{name} ")[2].partition("\n")[0]))


def test_fault_page_committed_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make faults`"
