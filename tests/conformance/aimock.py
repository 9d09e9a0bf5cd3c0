"""A provider by another project, in both dialects, that fails on purpose: `@copilotkit/aimock` behind the gateway.

Each case runs as JSON and as a stream, with a model of each dialect. A last case has random faults and retries, and
every response must be complete or an error.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.conformance.page import Result
from tests.conformance.places import AIMOCK
from tests.e2e.harness import CLAUDE, GPT, Gateway
from tests.e2e.reading import broken_stream, complete_chunks, text_of, tools_of
from tests.fakes.http_client import Got
from tests.fakes.ports import closed_port

NAME = AIMOCK.name
SAID = "Somebody else's words, " * 20
ARGUMENTS = {"city": "Oslo", "days": 3}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
RANDOM_REQUESTS = 300
SETTINGS = "[gateway]\nfirst_byte_timeout = 2\nidle_timeout = 2\n[routing]\nretries = {retries}\nbreaker = false\n"

Answer = dict[str, Any]
FAULTS: dict[str, tuple[Answer, tuple[int, str]]] = {  # case -> behaviour of the mock, and the client's status and code
    "drops the request (status 500)": ({"chaos": {"dropRate": 1}}, (502, "provider_error")),
    "sends invalid JSON": ({"chaos": {"malformedRate": 1}}, (502, "provider_error")),
    "limits the rate (status 429)": ({"chaos": {"rateLimitRate": 1}}, (429, "rate_limit_exceeded")),
    "closes before the response": ({"chaos": {"disconnectRate": 1}}, (502, "provider_error")),
    "returns status 400": ({"status": 400}, (400, "invalid_request")),
    "returns status 401": ({"status": 401}, (502, "provider_error")),
    "returns status 404": ({"status": 404}, (404, "model_not_found")),
    "returns status 503": ({"status": 503}, (502, "provider_error")),
    "returns status 529": ({"status": 529}, (502, "provider_error")),
}
CUTS: dict[str, Answer] = {
    "cuts the stream after three chunks": {"truncateAfterChunks": 3, "latency": 50},
    "closes the stream after 300 ms": {"disconnectAfterMs": 300, "latency": 50},
}


def fixture(case: str, what: Answer) -> Answer:
    """Return an entry of the mock's configuration file. `userMessage` selects the case."""
    response: Answer = {"content": SAID}
    if "status" in what:
        response = {"error": {"message": case, "type": "an_error"}, "status": what["status"]}
    if case == "calls a tool":
        response = {"toolCalls": [{"name": "weather", "arguments": json.dumps(ARGUMENTS)}]}
    rest = {name: value for name, value in what.items() if name != "status"}
    return {"match": {"userMessage": case}, "response": response, "chunkSize": 12, **rest}


@contextmanager
def mock(folder: Path) -> Iterator[int]:
    """The mock on its own port."""
    cases = {"responds": {}, "calls a tool": {}, **{case: what for case, (what, _) in FAULTS.items()}, **CUTS}
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": [fixture(*one) for one in cases.items()]}))
    port = closed_port()
    command = [*AIMOCK.command, "-p", str(port), "-f", str(folder / "fixtures.json")]
    with (folder / "aimock.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_for(port)
            yield port
        finally:
            process.terminate()
            process.wait(10)


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            control(port, "GET")
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def control(port: int, method: str, rates: Answer | None = None) -> None:
    """Read or set the random faults."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, "/__aimock/chaos", json.dumps(rates or {}), {"content-type": "application/json"})
    status = connection.getresponse().status
    connection.close()
    assert status in (200, 204), f"the mock answered {status}"


def run(folder: Path) -> list[Result]:
    """Run every case, then random faults."""
    with mock(folder) as port:
        env = {
            "PROVIDER_A_BASE_URL": f"http://127.0.0.1:{port}/v1",
            "PROVIDER_A_API_KEY": "sk-a",
            "PROVIDER_B_BASE_URL": f"http://127.0.0.1:{port}",
            "PROVIDER_B_API_KEY": "sk-b",
        }
        return [
            *with_gateway(folder / "plain", env, 0, each),
            *with_gateway(folder / "random", env, 2, random_faults(port)),
        ]


def with_gateway(home: Path, env: dict[str, str], retries: int, run: Callable[[Gateway], list[Result]]) -> list[Result]:
    home.mkdir()
    gateway = Gateway(home, env=env, config=SETTINGS.format(retries=retries)).start()
    try:
        return run(gateway)
    finally:
        gateway.stop()


def each(gateway: Gateway) -> list[Result]:
    found = []
    for model in (GPT, CLAUDE):
        for stream in (False, True):
            form = "stream" if stream else "JSON"
            found.append(
                run_case(f"responds, {form}", model, lambda: is_whole(send_request(gateway, model, "responds", stream)))
            )
            found.append(run_case(f"calls a tool, {form}", model, lambda: calls(gateway, model, stream)))
            for case, (_, wanted) in FAULTS.items():
                found.append(
                    run_case(
                        f"{case}, {form}", model, lambda: fails(send_request(gateway, model, case, stream), wanted)
                    )
                )
        for case in CUTS:
            found.append(run_case(case, model, lambda: is_cut(send_request(gateway, model, case, True))))
    return found


def run_case(case: str, model: str, run: Callable[[], None]) -> Result:
    """Return the result of one case. Any exception is its fault."""
    try:
        run()
    except (AssertionError, OSError, ValueError, KeyError) as error:
        return Result.of(NAME, case, model, f"{type(error).__name__}: {str(error)[:200]}")
    return Result.of(NAME, case, model, None)


def send_request(gateway: Gateway, model: str, case: str, stream: bool, **more: Any) -> Got:
    return gateway.chat(model, messages=[{"role": "user", "content": case}], stream=stream, max_tokens=500, **more)


def is_whole(got: Got) -> None:
    assert got.status == 200, got.body
    if got.headers["content-type"].startswith("text/event-stream"):
        assert text_of(complete_chunks(got.body)).strip() == SAID.strip()
    else:
        assert got.json["choices"][0]["message"]["content"].strip() == SAID.strip()


def calls(gateway: Gateway, model: str, stream: bool) -> None:
    got = send_request(gateway, model, "calls a tool", stream, tools=TOOLS)
    assert got.status == 200, got.body
    if stream:
        ((_, name, arguments),) = tools_of(complete_chunks(got.body))
    else:
        (call,) = got.json["choices"][0]["message"]["tool_calls"]
        name, arguments = call["function"]["name"], call["function"]["arguments"]
    assert (name, json.loads(arguments)) == ("weather", ARGUMENTS)


def fails(got: Got, wanted: tuple[int, str]) -> None:
    assert (got.status, got.code) == wanted, got.body


def is_cut(got: Got) -> None:
    assert got.status == 200, got.body
    chunks, error = broken_stream(got.body)
    assert error["code"] == "provider_error", error
    assert len(text_of(chunks)) < len(SAID)


def random_faults(port: int) -> Callable[[Gateway], list[Result]]:
    """Run requests with random faults. The gateway retries within its retry budget."""

    def ask_one(gateway: Gateway, number: int) -> str:
        got = send_request(gateway, (GPT, CLAUDE)[number % 2], "responds", bool(number % 4 // 2))
        if got.status != 200:
            assert (got.status, got.code) in ((502, "provider_error"), (429, "rate_limit_exceeded")), got.body
            return "error"
        is_whole(got)
        return "whole"

    def run(gateway: Gateway) -> list[Result]:
        control(port, "POST", {"dropRate": 0.1, "malformedRate": 0.1, "rateLimitRate": 0.1, "disconnectRate": 0.1})
        found: list[str] = []

        def all_of_them() -> None:
            with ThreadPoolExecutor(8) as pool:
                found.extend(pool.map(lambda number: ask_one(gateway, number), range(RANDOM_REQUESTS)))
            assert found.count("whole") > RANDOM_REQUESTS * 0.75, (
                f"only {found.count('whole')} of {RANDOM_REQUESTS} were whole"
            )

        result = run_case(f"{RANDOM_REQUESTS} requests, a third of the attempts fail", "both", all_of_them)
        print(f"{NAME}: {found.count('whole')} of {RANDOM_REQUESTS} responses complete, the others errors")
        control(port, "DELETE")
        return [result]

    return run
