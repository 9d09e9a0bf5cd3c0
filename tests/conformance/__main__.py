"""Runs client libraries against a gateway and writes docs/reference/conformance.md: `make conformance`.

`python -m tests.conformance [CLIENT …]` runs some of them and writes nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conformance import aimock
from tests.conformance.page import PAGE, Result, page
from tests.conformance.places import AIMOCK, CLIENTS, HERE, NODE, SDK, Client, install_sdk, versions
from tests.conformance.upstream import AnthropicUpstream, OpenAIUpstream
from tests.e2e.harness import Gateway, provider_environment, run
from tests.fakes.provider import FakeProvider
from tests.processes import restore_interrupts

CACHE = HERE.parents[1] / ".cache" / "svc-conformance"
MODELS = ("smollm2-135m", "all-minilm-l6-v2")
SETTINGS = "[local]\nenabled = true\n[routing]\nretries = 0\nbreaker = false\n"
SECONDS = 300


def main(names: list[str]) -> int:
    """Return 1 if a check fails and the page gives no reason for it."""
    restore_interrupts()
    chosen = [client for client in (*CLIENTS, AIMOCK) if not names or client.name in names]
    if unknown := set(names) - {client.name for client in chosen}:
        there = ", ".join(one.name for one in (*CLIENTS, AIMOCK))
        print(f"no such client: {', '.join(sorted(unknown))}; choose of {there}")
        return 2
    missing = [client.name for client in chosen if not client.is_there()]
    if missing:
        print(
            f"not installed, skipped: {', '.join(missing)} (`make conformance` installs them; some need node and npm)"
        )
    results = run_all([client for client in chosen if client.name not in missing])
    if not names and not missing:
        PAGE.write_text(page(results, versions()), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(HERE.parents[1])}")
    return int(any(one.fault and not one.reason for found in results.values() for one in found))


def run_all(chosen: list[Client]) -> dict[str, list[Result]]:
    """Return the results by client, in that order."""
    for script in (
        (HERE / "clients").glob("*.mjs") if NODE.exists() else ()
    ):  # node resolves packages relative to the script
        shutil.copy(script, NODE)
    if SDK in chosen:
        install_sdk()
    results: dict[str, list[Result]] = {}
    with servers() as (gateway, fakes):
        for client in chosen:
            if client is AIMOCK:
                results[client.name] = aimock.run(gateway.home)
            else:
                results[client.name] = run_one(client, gateway, fakes)
            print_results(client.name, results[client.name])
    return results


def print_results(name: str, results: list[Result]) -> None:
    failed = [one for one in results if one.fault]
    print(f"{name}: {len(results) - len(failed)} hold, {len(failed)} do not", flush=True)
    for one in failed:
        print(f"  {one.check} ({one.model}): {one.reason or one.fault}")


@contextmanager
def servers() -> Iterator[tuple[Gateway, Mapping[str, FakeProvider]]]:
    """A gateway with three providers and two models of this machine. The first has the Responses API, the last not."""
    add = {**os.environ, "SVC_HOME": str(CACHE)}
    for model in MODELS:
        subprocess.run([sys.executable, "-m", "svc", "models", "add", model], env=add, check=True, timeout=600)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="svc-conformance-")))
        fakes = {
            "A": stack.enter_context(FakeProvider(OpenAIUpstream(), key="sk-upstream-a-secret")),
            "B": stack.enter_context(FakeProvider(AnthropicUpstream(), key="sk-ant-upstream-b-secret")),
            "C": stack.enter_context(FakeProvider(OpenAIUpstream(), key="gsk_upstream_c_secret")),
        }
        env = {**provider_environment(fakes), "SVC_REGISTRY_ROOT": str(CACHE / "registry")}
        gateway = Gateway(home, env=env, config=SETTINGS).start(60)
        try:
            yield gateway, fakes
        finally:
            gateway.stop()


def run_one(client: Client, gateway: Gateway, fakes: Mapping[str, FakeProvider]) -> list[Result]:
    """Run one client in its own environment and return its results and the providers' view of them."""
    for fake in fakes.values():
        fake.forget()
    made = run("keys", "create", "--name", "weak", "--scope", "metrics", "--json", home=gateway.home)
    env = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "HOME": str(gateway.home),
        "SVC_URL": gateway.url,
        "SVC_KEY": gateway.key,
        "SVC_WEAK_KEY": json.loads(made.stdout)["key"],
        "PYTHONPATH": str(HERE / "clients"),
    }
    try:
        ended = subprocess.run(
            client.command, cwd=HERE / "clients", env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return [Result.of(client.name, "it ends", "", f"it ran for more than {SECONDS} s")]
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"check"')]
    results = [Result.of(client.name, one["check"], one["model"], one["fault"]) for one in lines]
    if ended.returncode or not results:
        results.append(Result.of(client.name, "it runs", "", " ".join(ended.stderr.split())[-300:] or "no report"))
    kept = cancelled_too_late(fakes)
    return [
        Result.of(one.client, one.check, one.model, kept) if one.check == "cancellation" and not one.fault else one
        for one in results
    ]


def cancelled_too_late(fakes: Mapping[str, FakeProvider]) -> str | None:
    """Check that each cancelled slow response is closed before that client's next request."""
    seen = sorted((one for fake in fakes.values() for one in fake.requests), key=lambda one: one.arrived)
    for at, one in enumerate(seen):
        if b"[[slow]]" in one.body:
            following = seen[at + 1].arrived if at + 1 < len(seen) else float("inf")
            if one.left is None or one.left > following:
                return "the provider was still sending when the client sent its next request"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
