"""The voices and speech models that a key may use: `GET /v1/audio/voices`. Data only."""

from __future__ import annotations

from typing import Literal

import msgspec


class VoiceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that speaks."""

    model: str
    """The id of the model, for `POST /v1/audio/speech`."""
    provider: str
    """The provider. `local` is this machine."""
    quality: Literal["natural", "fast"] | None
    """`natural`: a neural network makes the sound. Null for a model of another provider."""
    languages: list[str]
    """Language codes such as `en`. Empty means unknown."""
    is_default: bool
    """Whether it is `speech.default_voice`."""


class TranscriptionModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model of this machine that turns speech into text, live or from a file."""

    model: str
    """The id of the model."""
    languages: list[str]
    """Language codes such as `en`. Empty means unknown."""
    is_default: bool
    """Whether it is `speech.default_model`."""


class VoiceList(msgspec.Struct, frozen=True, kw_only=True):
    """The voices and the speech models that the key may use."""

    object: str = "list"
    """Always `list`."""
    data: list[VoiceEntry]
    """The voices."""
    transcription_models: list[TranscriptionModelEntry]
    """The models for live speech and files."""
