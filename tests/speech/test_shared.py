"""Additional clips, if they are present beside the repository."""

import asyncio
import json

import pytest

from tests.speech import material
from tests.speech.gateway import Gateway, check_stable_prefixes, session


@pytest.mark.shared
async def test_session_shared_clips_have_at_most_ten_percent_word_errors(gateway: Gateway):
    folder = material.SHARED / "audio"
    errors = count = 0
    for entry in json.loads((folder / "manifest.json").read_text()):
        if entry["lang"] != "en":
            continue
        audio = material.read_pcm(folder / entry["wav"])
        async with session(gateway) as client:
            await client.send_message(type="config")
            for place in range(0, len(audio), 16000):
                await client.socket.send(audio[place : place + 16000])
                await asyncio.sleep(0.06)
            await client.send_message(type="flush")
            final = await client.wait_for("final")
        check_stable_prefixes(client.received)
        errors += material.count_word_errors(entry["text"], final["text"])
        count += len(material.words(entry["text"]))
    assert errors <= 0.1 * count
