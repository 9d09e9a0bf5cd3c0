"""`svc transcribe` on a terminal and in a pipe."""

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
import soundfile
import soxr

from tests import fork_server
from tests.speech import material
from tests.speech.gateway import KEY, Gateway


def svc(gateway: Gateway, *arguments: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    variables = {**os.environ, "SVC_GATEWAY_URL": gateway.address + "/v1", "SVC_API_KEY": KEY, **environ}
    if not stdin:
        done = fork_server.run_command(["transcribe", *arguments], variables, Path.cwd())
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.encode(), done.stderr.encode())
    command = [sys.executable, "-m", "svc", "transcribe", *arguments]
    return subprocess.run(command, input=stdin, env=variables, capture_output=True, timeout=60, check=False)


def test_transcribe_output_to_pipe_is_final_text_only(gateway: Gateway, clips: dict[str, Path]):
    result = svc(gateway, str(clips["en-quick-brown-fox"]))  # float samples at another rate
    assert (result.returncode, result.stderr) == (0, b"")
    assert material.count_word_errors(material.TEXTS["en-quick-brown-fox"], result.stdout.decode()) <= 1
    assert result.stdout.count(b"\n") == 1


@pytest.mark.slow
def test_transcribe_stdin_raw_audio_and_wav_are_accepted(gateway: Gateway, clips: dict[str, Path]):
    raw = svc(gateway, "-", stdin=material.read_pcm(clips["en-hello-world"]))
    stream = svc(gateway, "-", stdin=clips["en-hello-world"].read_bytes())
    assert material.words(raw.stdout.decode()) == material.words(stream.stdout.decode()) == ["hello", "world"]
    assert svc(gateway, "-").returncode == 0


@pytest.mark.parametrize(("suffix", "name"), [("flac", "FLAC"), ("ogg", "Ogg"), ("mp3", "MP3")])
def test_transcribe_compressed_stdin_is_rejected(
    gateway: Gateway, clips: dict[str, Path], tmp_path: Path, suffix: str, name: str
):
    path = tmp_path / f"talk.{suffix}"
    soundfile.write(path, *soundfile.read(clips["en-hello-world"]), format=suffix.upper())
    result = svc(gateway, "-", stdin=path.read_bytes())
    message = f"svc: Standard input is {name}, not PCM or WAV. Give the file's name instead of -.\n"
    assert (result.returncode, result.stdout, result.stderr.decode()) == (2, b"", message)


@pytest.mark.slow
def test_transcribe_truncated_file_is_transcribed_with_warning(
    gateway: Gateway, clips: dict[str, Path], tmp_path: Path
):
    whole = clips["en-counting"].read_bytes()
    path = tmp_path / "cut.wav"
    path.write_bytes(whole[: len(whole) // 2])
    for result in (svc(gateway, str(path)), svc(gateway, "-", stdin=path.read_bytes())):
        assert result.returncode == 0
        assert result.stdout.decode().lower().startswith("one, two")
        assert "truncated" in result.stderr.decode()
    late = whole[:12] + b"JUNK" + (200_000).to_bytes(4, "little") + bytes(200_000) + whole[12:]  # for example a picture
    path.write_bytes(late)
    assert svc(gateway, str(path)).stdout == svc(gateway, "-", stdin=whole).stdout
    path.write_bytes(whole + b"LIST\x80\x3e\0\0" + bytes(range(125, 255)) * 123)  # would be noise if decoded as audio
    result = svc(gateway, str(path))
    assert (result.returncode, result.stderr) == (0, b"")
    assert material.count_word_errors(material.TEXTS["en-counting"], result.stdout.decode()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "subtype"), [("mp3", "MPEG_LAYER_III"), ("flac", "PCM_16"), ("ogg", "OPUS")])
def test_transcribe_compressed_file_is_decoded(
    gateway: Gateway, clips: dict[str, Path], tmp_path: Path, suffix: str, subtype: str
):
    samples, rate = soundfile.read(clips["en-hello-world"], dtype="float32")
    path = tmp_path / f"talk.{suffix}"
    resampled = soxr.resample(samples, rate, 24000)
    soundfile.write(path, resampled, 24000, format=suffix.upper(), subtype=subtype)
    result = svc(gateway, str(path))
    assert (result.returncode, result.stderr) == (0, b"")
    assert material.words(result.stdout.decode()) == ["hello", "world"]


@pytest.mark.slow
def test_transcribe_truncated_mp3_is_transcribed_with_warning(gateway: Gateway, clips: dict[str, Path], tmp_path: Path):
    samples, rate = soundfile.read(clips["en-counting"], dtype="float32")
    path = tmp_path / "cut.mp3"
    soundfile.write(path, samples, rate, format="MP3", subtype="MPEG_LAYER_III")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    result = svc(gateway, str(path))
    assert (result.returncode, result.stdout.decode().lower()[:8]) == (0, "one, two")
    assert "damaged after" in result.stderr.decode()
    path.write_bytes(b"ID3" + bytes(100))
    result = svc(gateway, str(path))
    assert (result.returncode, result.stdout) == (2, b"")
    assert "damaged" in result.stderr.decode()


def test_transcribe_json_option_prints_every_message(gateway: Gateway, clips: dict[str, Path]):
    result = svc(gateway, "--json", str(clips["en-hello-world"]))
    lines = result.stdout.decode().splitlines()
    assert '"ready"' in lines[0]
    assert '"final"' in lines[-2]
    assert '"closed"' in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "environ", "status", "expected_text"),
    [
        (["nothing.wav"], {}, 2, "no file"),
        ([__file__], {}, 2, "format is not supported"),
        ([str(Path(__file__).with_name("__init__.py"))], {}, 2, "The file is empty.\n"),
        (["-", "--rate", "7"], {}, 2, "--rate"),
        (["-"], {"SVC_API_KEY": "wrong"}, 1, "SVC_API_KEY"),
        (["-"], {"SVC_GATEWAY_URL": "http://127.0.0.1:1/v1"}, 1, "svc up"),
        (["-"], {"SVC_GATEWAY_URL": "ftp://nonsense"}, 2, "http or https URL"),
        (["-", "--language", "fr"], {}, 1, "en"),
        (["-", "--model", "none"], {}, 1, "moonshine-tiny-en"),
    ],
)
def test_transcribe_wrong_usage_or_configuration_prints_one_line(
    gateway: Gateway, arguments, environ, status, expected_text
):
    result = svc(gateway, *arguments, **environ)
    assert (result.returncode, result.stdout) == (status, b"")
    assert expected_text in result.stderr.decode()
    assert result.stderr.count(b"\n") == 1


def test_transcribe_unreadable_stdin_fails_without_hanging(gateway: Gateway):
    """A failed read must end the command."""
    variables = {**os.environ, "SVC_GATEWAY_URL": gateway.address + "/v1", "SVC_API_KEY": KEY}
    controller, terminal = pty.openpty()
    os.close(terminal)  # reading from a terminal without an open peer is an error
    for redirected, expected_text in (("", "Input/output error"), ("<&-", "Standard input is closed")):
        command = ["sh", "-c", f"exec {sys.executable} -m svc transcribe - {redirected}"]
        result = subprocess.run(command, env=variables, stdin=controller, capture_output=True, timeout=30, check=False)
        assert result.returncode in (1, 2)
        assert expected_text in result.stderr.decode()
        assert result.stderr.count(b"\n") == 1
    os.close(controller)


def test_transcribe_sigint_prints_final_text(gateway: Gateway, clips: dict[str, Path]):
    """The standard input may still be open."""
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


@pytest.mark.slow
def test_transcribe_terminal_shows_growing_text(gateway: Gateway, clips: dict[str, Path], tmp_path: Path):
    path = tmp_path / "speech.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(material.read_pcm(clips["en-counting"]))
    controller, terminal = pty.openpty()
    variables = {**os.environ, "SVC_GATEWAY_URL": gateway.address + "/v1", "SVC_API_KEY": KEY, "COLUMNS": "60"}
    command = [sys.executable, "-m", "svc", "transcribe", "--realtime", str(path)]
    with subprocess.Popen(command, env=variables, stdout=terminal, stdin=subprocess.DEVNULL) as process:
        os.close(terminal)
        shown, deadline = b"", time.monotonic() + 30
        while time.monotonic() < deadline and select.select([controller], [], [], 10)[0]:
            try:
                shown += os.read(controller, 4096)
            except OSError:  # the other end is closed
                break
        assert process.wait(10) == 0
    os.close(controller)
    drawn = shown.decode().split("\r\x1b[K")
    assert len(drawn) >= 4
    assert material.count_word_errors(material.TEXTS["en-counting"], drawn[-1]) <= 1
