"""The options that the gateway writes to the process that speaks."""

from __future__ import annotations

import msgspec

VOICE_HEARTBEAT_SECONDS = 5.0
"""Seconds between two empty lines that the process writes to the socket of its work."""


class VoiceServerOptions(msgspec.Struct, frozen=True):
    """The options that the process reads from stdin."""

    descriptor: int
    """The listening socket."""
    work_descriptor: int
    """The socket to the gateway for one line of JSON (`SpeechWork`) after each request, and for heartbeats."""
    key: str
    """The key that the gateway sends."""
    registry_root: str
    max_requests: int
    """Texts that are spoken at a time."""
    nice: int
    preload: str = ""
    """The voice to load at the start."""
