"""`svc transcribe`, as a person and as a pipe use it."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path

import pytest

from tests.speech import material
from tests.speech.gateway import KEY, Gateway


def svc(gateway: Gateway, *arguments: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    variables = {**os.environ, "SVC_GATEWAY_URL": gateway.address + "/v1", "SVC_API_KEY": KEY, **environ}
    command = [sys.executable, "-m", "svc", "transcribe", *arguments]
    return subprocess.run(command, input=stdin, env=variables, capture_output=True, timeout=60, check=False)


def test_a_pipe_gets_the_final_alone(gateway: Gateway, clips: dict[str, Path]):
    done = svc(gateway, str(clips["en-quick-brown-fox"]))  # floats at another rate
    assert (done.returncode, done.stderr) == (0, b"")
    assert material.count_word_errors(material.TEXTS["en-quick-brown-fox"], done.stdout.decode()) <= 1
    assert done.stdout.count(b"\n") == 1


def test_raw_audio_and_a_wav_stream_from_standard_input(gateway: Gateway, clips: dict[str, Path]):
    raw = svc(gateway, "-", stdin=material.read_pcm(clips["en-hello-world"]))
    stream = svc(gateway, "-", stdin=clips["en-hello-world"].read_bytes())
    assert material.words(raw.stdout.decode()) == material.words(stream.stdout.decode()) == ["hello", "world"]
    assert svc(gateway, "-").returncode == 0


def test_a_file_that_is_cut_off_is_heard_and_said_to_be(gateway: Gateway, clips: dict[str, Path], tmp_path: Path):
    whole = clips["en-counting"].read_bytes()
    path = tmp_path / "cut.wav"
    path.write_bytes(whole[: len(whole) // 2])
    for done in (svc(gateway, str(path)), svc(gateway, "-", stdin=path.read_bytes())):
        assert done.returncode == 0
        assert done.stdout.decode().lower().startswith("one, two")
        assert "truncated" in done.stderr.decode()
    late = whole[:12] + b"JUNK" + (200_000).to_bytes(4, "little") + bytes(200_000) + whole[12:]  # a picture, say
    path.write_bytes(late)
    assert svc(gateway, str(path)).stdout == svc(gateway, "-", stdin=whole).stdout
    path.write_bytes(whole + b"LIST\x80\x3e\0\0" + bytes(range(125, 255)) * 123)  # noise, if it were sound
    done = svc(gateway, str(path))
    assert (done.returncode, done.stderr) == (0, b"")
    assert material.count_word_errors(material.TEXTS["en-counting"], done.stdout.decode()) <= 1


def test_json_has_every_message(gateway: Gateway, clips: dict[str, Path]):
    done = svc(gateway, "--json", str(clips["en-hello-world"]))
    lines = done.stdout.decode().splitlines()
    assert '"ready"' in lines[0]
    assert '"final"' in lines[-2]
    assert '"closed"' in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "environ", "status", "word"),
    [
        (["nothing.wav"], {}, 2, "no file"),
        ([__file__], {}, 2, "not a WAV file"),
        (["-", "--rate", "7"], {}, 2, "--rate"),
        (["-"], {"SVC_API_KEY": "wrong"}, 1, "SVC_API_KEY"),
        (["-"], {"SVC_GATEWAY_URL": "http://127.0.0.1:1/v1"}, 1, "svc up"),
        (["-"], {"SVC_GATEWAY_URL": "ftp://nonsense"}, 2, "http or https URL"),
        (["-", "--language", "fr"], {}, 1, "en"),
        (["-", "--model", "none"], {}, 1, "moonshine-tiny-en"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(gateway: Gateway, arguments, environ, status, word):
    done = svc(gateway, *arguments, **environ)
    assert (done.returncode, done.stdout) == (status, b"")
    assert word in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_a_source_that_cannot_be_read(gateway: Gateway):
    """A read that fails must not leave the command waiting for more."""
    variables = {**os.environ, "SVC_GATEWAY_URL": gateway.address + "/v1", "SVC_API_KEY": KEY}
    ours, theirs = pty.openpty()
    os.close(theirs)  # reading from a terminal that nobody has open is an error
    for redirected, word in (("", "Input/output error"), ("<&-", "Standard input is closed")):
        command = ["sh", "-c", f"exec {sys.executable} -m svc transcribe - {redirected}"]
        done = subprocess.run(command, env=variables, stdin=ours, capture_output=True, timeout=30, check=False)
        assert done.returncode in (1, 2)
        assert word in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1
    os.close(ours)


def test_ctrl_c_gives_the_final_of_what_was_said(gateway: Gateway, clips: dict[str, Path]):
    """Whoever writes need not have stopped."""
    variables = {**os.environ, "SVC_GATEWAY_URL": gateway.address + "/v1", "SVC_API_KEY": KEY}
    command = [sys.executable, "-m", "svc", "transcribe", "--json", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(material.read_pcm(clips["en-counting"]))
        process.stdin.flush()
        while b'"ready"' not in process.stdout.readline():
            pass
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert b'"final"' in process.stdout.read()
        assert process.stderr.read() == b""


def test_a_terminal_sees_the_text_grow(gateway: Gateway, clips: dict[str, Path], tmp_path: Path):
    path = tmp_path / "speech.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(material.read_pcm(clips["en-counting"]))
    ours, theirs = pty.openpty()
    variables = {**os.environ, "SVC_GATEWAY_URL": gateway.address + "/v1", "SVC_API_KEY": KEY, "COLUMNS": "60"}
    command = [sys.executable, "-m", "svc", "transcribe", "--realtime", str(path)]
    with subprocess.Popen(command, env=variables, stdout=theirs, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown, deadline = b"", time.monotonic() + 30
        while time.monotonic() < deadline and select.select([ours], [], [], 10)[0]:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        assert process.wait(10) == 0
    os.close(ours)
    drawn = shown.decode().split("\r\x1b[K")
    assert len(drawn) >= 4
    assert material.count_word_errors(material.TEXTS["en-counting"], drawn[-1]) <= 1
