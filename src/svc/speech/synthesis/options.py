"""The options that the gateway writes to the process that speaks."""

from __future__ import annotations

import msgspec


class VoiceServerOptions(msgspec.Struct, frozen=True):
    """The options that the process reads from stdin."""

    descriptor: int
    """The listening socket."""
    work_descriptor: int
    """The socket to the gateway for one line of JSON (`SpeechWork`) after each request."""
    key: str
    """The key that the gateway sends."""
    registry_root: str
    max_requests: int
    """Texts that are spoken at a time."""
    nice: int
    preload: str = ""
    """The voice to load at the start."""
