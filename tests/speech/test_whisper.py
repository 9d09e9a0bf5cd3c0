"""The second engine, with its real model: languages that the default does not have."""

from pathlib import Path

import pytest

from tests.speech import material
from tests.speech.gateway import Gateway, check_promises, session


@pytest.fixture(scope="module")
def whisper() -> Path:
    return material.model("whisper-base")


async def test_spanish(gateway: Gateway, clips: dict[str, Path], whisper: Path):
    async with session(gateway) as client:
        await client.say(type="config", model="whisper-base", language="es-MX")
        assert (await client.get("ready", timeout=60))["model"] == "whisper-base"
        await client.audio(material.pcm(clips["es-pangrama"]))
        await client.say(type="flush")
        final = await client.get("final", timeout=60)
        assert "feliz cardillo y kiwi" in final["text"].lower()
        check_promises(client.heard)
        await client.say(type="config", model="whisper-base", language="tlh")
        error = await client.get("error")
        assert error["code"] == "invalid_request"
        assert "es" in error["message"]
