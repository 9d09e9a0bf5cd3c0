"""A gateway with faulty providers, for a soak."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.harness import Gateway
from tests.fakes.anthropic_wire import AnthropicWire
from tests.fakes.certificate import certificate, context
from tests.fakes.openai_wire import OpenAIWire
from tests.fakes.ports import closed_port
from tests.fakes.provider import FakeProvider
from tests.faults.catalogue import Letter
from tests.faults.test_matrix import FaultWire, configuration
from tests.soak.soak import Soak


@contextlib.contextmanager
def soaking(home: Path, scheme: str = "https") -> Iterator[Soak]:
    """Yield a soak that is ready to `run`. The gateway must exit with status 0. `scheme` is that of the providers."""
    file = certificate(home, "localhost")
    tls = context(file) if scheme == "https" else None
    with (
        FakeProvider(FaultWire(OpenAIWire(), "A"), key="sk-faulty", tls=tls) as a,
        FakeProvider(FaultWire(AnthropicWire(), "B"), key="sk-faulty", tls=tls) as b,
        FakeProvider(FaultWire(OpenAIWire(), "R"), key="sk-faulty", tls=tls) as r,
    ):
        fakes: dict[Letter, FakeProvider] = {"A": a, "B": b, "R": r}
        upstreams = {(letter, "fake"): fake for letter, fake in fakes.items()}
        config = configuration(upstreams, {"closed": closed_port(), "silent": closed_port()}, scheme)
        config = config.replace("timeout = 1", "timeout = 5").replace("total_timeout = 3", "total_timeout = 8")
        config = config.replace("retries = 1", "retries = 1\nretry_share = 1")
        env = {"FAULTY_KEY": "sk-faulty", "SSL_CERT_FILE": str(file)}
        gateway = Gateway(home, env=env, config=config).start()
        try:
            yield Soak(gateway, fakes)
        finally:
            assert gateway.stop() == 0, gateway.log[-5000:]
        assert "Traceback" not in gateway.log
        assert "Task was destroyed" not in gateway.log
