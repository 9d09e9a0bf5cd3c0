"""Bundles and pipelines with the session of a browser, several workers, and a voice that was uploaded."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import wave
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import pytest

from tests.e2e.accounts.test_admin_bundles import make_bundle
from tests.e2e.accounts.test_admin_pipelines import ASK, RUN, events_of
from tests.e2e.accounts.test_keys import create
from tests.e2e.accounts.test_voice_list import speech_bundle
from tests.e2e.conftest import serve
from tests.e2e.harness import Gateway
from tests.fakes import openai_wire
from tests.fakes.provider import FakeProvider
from tests.fakes.script import sse

SPEAK = "name: speak\ninput: {kind: Text}\nstages: [toy-voice@1.0]\n"


@pytest.fixture(scope="module")
def gateway(all_fakes: Mapping[str, FakeProvider], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    config = "[console]\nenabled = true\n[gateway]\nworkers = 2\n"
    yield from serve(all_fakes, tmp_path_factory.mktemp("console"), config)


@pytest.fixture(scope="module")
def session(gateway: Gateway) -> dict[str, str]:
    """The headers of a browser that is logged in with all scopes that the pages need."""
    key = create(gateway, "--name", "boss", "--scope", "admin,chat,speech")["key"]
    got = gateway.request("POST", "/console/session", {"key": key}, key=None)
    assert got.status == 200, got.body
    return {"cookie": got.headers["set-cookie"].partition(";")[0], "x-csrf-token": got.json["csrf_token"]}


@pytest.fixture(autouse=True)
def fresh(fakes: object) -> None:
    """Reset the fake providers before every test."""


def request(gateway: Gateway, session: dict[str, str], method: str, path: str, body: Any = None, **more: str) -> Any:
    return gateway.request(method, path, body, key=None, headers={**session, **more})


def test_session_uploads_large_chunks_to_any_worker(gateway: Gateway, session: dict[str, str]) -> None:
    data = make_bundle("from-browser", weights=os.urandom(3_000_000))
    wanted = {"model_id": "from-browser", "version": "1.0", "size_bytes": len(data)}
    upload = request(gateway, session, "POST", "/v1/admin/uploads", wanted).json
    path, size = f"/v1/admin/uploads/{upload['id']}", 400_000
    for offset in range(0, len(data), size):  # each request has its own connection, so both workers get some
        got = request(gateway, session, "PATCH", path, data[offset : offset + size], **{"upload-offset": str(offset)})
        assert got.status == 200, got.body
    done = request(gateway, session, "POST", f"{path}/commit")
    assert (done.status, done.json["sha256"]) == (201, hashlib.sha256(data).hexdigest())
    forged = {"cookie": session["cookie"]}
    refused = request(gateway, forged, "POST", "/v1/admin/bundles/from-browser/1.0/any/yank")
    assert (refused.status, refused.code) == (403, "permission_denied")


def test_session_runs_a_pipeline(gateway: Gateway, session: dict[str, str], provider_a: FakeProvider) -> None:
    provider_a.always_plays(sse(openai_wire.stream("Paris.")))
    got = request(gateway, session, "POST", RUN, {"yaml": ASK, "input": {"text": "Hi"}})
    assert got.status == 200, got.body
    assert events_of(got.body)[-1]["result"]["output"]["text"] == "Paris."


@pytest.mark.skipif(find_spec("espeakng_loader") is None, reason="needs the extra voice")
def test_session_runs_an_uploaded_voice(gateway: Gateway, session: dict[str, str]) -> None:
    voice = speech_bundle("toy-voice", "tts.json", {"engine": "espeak", "voice": "en-us"}, {})
    assert request(gateway, session, "PUT", "/v1/admin/bundles/toy-voice/1.0/any", voice).status == 201
    got = request(gateway, session, "POST", RUN, {"yaml": SPEAK, "input": {"text": "Hello there."}})
    assert got.status == 200, got.body
    events = events_of(got.body)
    assert events[-1]["result"]["error"] is None
    assert events[-1]["result"]["output"]["kind"] == "audio"
    finished = next(event for event in events if event["type"] == "stage.finished")
    with wave.open(io.BytesIO(base64.b64decode(finished["audio"]))) as wav:
        assert wav.getnframes() / wav.getframerate() == pytest.approx(finished["output"]["seconds"], abs=0.01)
        assert wav.getnframes() > 0.3 * wav.getframerate()
