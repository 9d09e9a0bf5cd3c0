"""Decodes one audio file from standard input: `python -m svc.speech.decoder KIND`. Runs in its own process.

Uploads are untrusted and the decoders are C libraries, so the process has low resource limits. Standard output is a
line `[rate, seconds]`, where `seconds` is the stated duration or null, then 16-bit mono samples. The exit status is 1
if the file is damaged.
"""

from __future__ import annotations

import logging
import resource
import signal
import sys

import msgspec

from svc import plugins
from svc.speech.audio_files import FFMPEG_KINDS

MAX_DECODER_MEMORY_BYTES = 3 << 30
MAX_DECODER_CPU_SECONDS = 600


def main() -> int:
    """Decode standard input and return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for limit, maximum in (
        (resource.RLIMIT_AS, MAX_DECODER_MEMORY_BYTES),
        (resource.RLIMIT_CPU, MAX_DECODER_CPU_SECONDS),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(limit, (maximum, maximum))
    kind, out = sys.argv[1], sys.stdout.buffer
    decoder = plugins.load("speech.decoders", "ffmpeg" if kind in FFMPEG_KINDS else "sndfile")
    try:
        decoded = decoder.decode(sys.stdin.buffer, kind)
        out.write(msgspec.json.encode((decoded.rate, decoded.seconds)) + b"\n")
        for chunk in decoded.chunks:
            out.write(chunk)
        out.flush()
    except BrokenPipeError:  # the gateway stopped reading
        return 1
    except Exception:  # libraries raise many types: all mean a damaged file
        logging.exception("the file cannot be decoded")
        out.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
