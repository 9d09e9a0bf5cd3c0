"""A live session ends with its key: revoked, expired, or changed so that it may not use this any more."""

import asyncio
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets

from tests.speech import material
from tests.speech.accounts import run_svc, wait_for_entries
from tests.speech.gateway import Gateway, LiveClient, session
from tests.speech.gateway import run_gateway as run


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def gateway(home: Path, model: Path) -> Iterator[Gateway]:
    with run(home) as running:
        yield running


def create(home: Path, name: str, *limits: str) -> tuple[str, dict[str, str]]:
    """The id of a new key, and the header that sends it."""
    made: dict[str, Any] = run_svc(home, "keys", "create", "--name", name, "--json", *limits)
    return made["id"], {"Authorization": f"Bearer {made['key']}"}


async def expect_end(client: LiveClient) -> None:
    """The server says why, and closes with the code for a violated policy."""
    assert (await client.wait_for("closed", timeout=8))["reason"] == "key_revoked"
    with pytest.raises(websockets.ConnectionClosed):
        await client.socket.recv()
    assert client.socket.close_code == 1008


async def test_session_key_revoked_ends_that_session_alone(gateway: Gateway, home: Path, clips: dict[str, Path]):
    audio = material.read_pcm(clips["en-hello-world"])
    (revoked, header), (_, other) = create(home, "revoked"), create(home, "kept")
    async with session(gateway, headers=header) as client, session(gateway, headers=other) as neighbour:
        for each in (client, neighbour):
            await each.send_message(type="config")
            await each.wait_for("ready")
        await client.send_audio(audio)
        run_svc(home, "keys", "revoke", revoked, "--json")
        await expect_end(client)
        with pytest.raises(websockets.InvalidStatus):
            async with session(gateway, headers=header):
                pass
        await neighbour.send_audio(audio)
        await neighbour.send_message(type="flush")
        assert material.words((await neighbour.wait_for("final"))["text"]) == ["hello", "world"]
    (entry,) = await wait_for_entries(home, "revoked", 1)
    assert (entry["status"], entry["http_status"], entry["code"]) == ("cut", 101, "authentication_error")


async def test_session_key_expired_ends(gateway: Gateway, home: Path):
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=4)
    _, header = create(home, "short", "--expires", end.isoformat())
    async with session(gateway, headers=header) as client:
        await client.send_message(type="config")
        await client.wait_for("ready")
        await expect_end(client)


@pytest.mark.parametrize("change", [("--scope", "chat"), ("--models", "gpt-4o")])
async def test_session_key_changed_ends_when_it_may_not_use_this(gateway: Gateway, home: Path, change: tuple[str, str]):
    id, header = create(home, "changed")
    async with session(gateway, headers=header) as client:
        await client.send_message(type="config")
        await client.wait_for("ready")
        run_svc(home, "keys", "change", id, "--rpm", "50", "--json")
        await asyncio.sleep(2)  # a change that allows it does not end it
        await client.send_message(type="flush")
        await client.wait_for("final")
        run_svc(home, "keys", "change", id, *change, "--json")
        await expect_end(client)


async def test_session_key_revoked_before_config_ends(gateway: Gateway, home: Path):
    id, header = create(home, "silent")
    async with session(gateway, headers=header) as client:
        run_svc(home, "keys", "revoke", id, "--json")
        await expect_end(client)
