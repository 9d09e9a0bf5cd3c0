"""A reload of a gateway with several workers: live sessions continue in the old worker."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.speech import material
from tests.speech.gateway import run_gateway, session

pytestmark = pytest.mark.slow


async def test_session_continues_while_workers_are_replaced(
    tmp_path: Path, model: Path, clips: dict[str, Path]
) -> None:
    audio = material.read_pcm(clips["en-hello-world"])
    with run_gateway(tmp_path, "[gateway]\nworkers = 2\ndrain_timeout = 20\n") as gateway:
        async with session(gateway) as client:
            await client.send_message(type="config")
            await client.wait_for("ready")
            gateway.process.send_signal(signal.SIGHUP)
            assert gateway.log is not None
            async with asyncio.timeout(30):
                while "every worker was replaced" not in gateway.log.read_text():
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)  # the old workers have handled their signal
            await client.send_audio(audio)
            await client.send_message(type="flush")
            assert material.words((await client.wait_for("final"))["text"]) == ["hello", "world"]
            async with session(gateway) as other:  # a new worker
                await other.send_message(type="config")
                await other.wait_for("ready")
                gateway.process.send_signal(signal.SIGTERM)
                for each in (client, other):
                    assert (await each.wait_for("closed"))["reason"] == "server_shutdown"
