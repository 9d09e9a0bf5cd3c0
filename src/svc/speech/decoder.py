"""Decodes one sound file from standard input: `python -m svc.speech.decoder KIND`, never in the gateway's process.

Files come from strangers and decoders are written in C, so it may use little, and its death harms nobody. Standard
output: a line `[rate, seconds]`, where seconds is what the file's header says, or null, then 16-bit mono samples. The
exit status is 1 when the file is damaged.
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
    """The exit status."""
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
    except BrokenPipeError:  # whoever asked has left
        return 1
    except Exception:  # the edge of a process: whatever a decoder raises is a damaged file
        logging.exception("the file cannot be decoded")
        out.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
