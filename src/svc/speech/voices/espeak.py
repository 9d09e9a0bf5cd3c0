"""The espeak-ng engine: small, fast, offline, about a hundred languages. The library is installed from a wheel.

https://github.com/espeak-ng/espeak-ng/blob/master/src/include/espeak-ng/speak_lib.h
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from pathlib import Path
from typing import Any

import espeakng_loader

from svc.errors import PipelineFailed

ESPEAK_SYNCHRONOUS = 2
ESPEAK_NO_EXIT = 0x8000
ESPEAK_UTF8 = 1
ESPEAK_RATE_PARAMETER = 1
MIN_WORDS_PER_MINUTE, MAX_WORDS_PER_MINUTE = 80, 450
ESPEAK_IPA = 2
PUNCTUATION_MARKS = ",;:.!?"
_CLAUSE_BREAK = re.compile(rf"(?<=[{PUNCTUATION_MARKS}])\s+")
_LANGUAGE_SWITCH = re.compile(r"\([a-z-]+\)")
"""A marker such as `(en)`, where espeak-ng switches to another language."""


class _EspeakVoiceEntry(ctypes.Structure):
    """The beginning of a voice in the library's list. Each language follows a byte with its priority."""

    _fields_ = (("name", ctypes.c_char_p), ("languages", ctypes.c_char_p))


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def sounds(text: str, voice: str) -> str:
    """Return the phonemes of a text in the IPA, for engines that need them. Raises PipelineFailed."""
    return _library().to_phonemes(text, voice)


def load(folder: Path, about: Any) -> EspeakVoice:
    """Load the voice of the description. Raises PipelineFailed if the library does not have it."""
    return EspeakVoice(_library(), about.voice, about.rate)


class EspeakVoice:
    """A voice of espeak-ng."""

    def __init__(self, library: EspeakLibrary, voice: str, rate: int) -> None:
        self._library, self._voice, self._rate = library, voice, rate
        library.set_voice(voice, min(max(rate, MIN_WORDS_PER_MINUTE), MAX_WORDS_PER_MINUTE))

    def say(self, text: str, speed: float = 1.0, variant: str | None = None) -> tuple[int, bytes]:
        """Return the sample rate in Hz, and 16-bit mono samples. `variant` is another voice, such as `en-gb`."""
        voice = variant if variant in self._library.voice_names else self._voice
        rate = min(max(round(self._rate * speed), MIN_WORDS_PER_MINUTE), MAX_WORDS_PER_MINUTE)
        return self._library.rate, self._library.say(text, voice, rate)


class EspeakLibrary:
    """The library. It has one state per process, so a lock serializes all voices."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lib = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self.rate = int(self._lib.espeak_Initialize(ESPEAK_SYNCHRONOUS, 0, data, ESPEAK_NO_EXIT))
        if self.rate <= 0:
            raise PipelineFailed("espeak-ng could not be started: its data is missing.")
        self._lib.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self._lib.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(_EspeakVoiceEntry))
        self.voice_names = self._list_voice_names()
        """The names of the voices by their language codes, such as `en-us`."""
        self._sample_chunks: list[bytes] = []
        self._callback = _Callback(self._on_samples)  # keeps the callback alive: the library calls it
        self._lib.espeak_SetSynthCallback(self._callback)

    def _list_voice_names(self) -> dict[str, bytes]:
        entries = self._lib.espeak_ListVoices(None)
        names: dict[str, bytes] = {}
        index = 0
        while entries[index]:  # a null pointer ends the list
            entry = entries[index].contents
            names.setdefault((entry.languages or b"")[1:].decode("utf-8", "replace"), entry.name or b"")
            index += 1
        return names

    def set_voice(self, voice: str, rate: int) -> None:
        """Set the voice. Raises PipelineFailed if it does not exist."""
        # The library knows a voice by its file and its name. A few files, such as that of `en-gb`, have other names.
        if not any(
            name and self._lib.espeak_SetVoiceByName(name) == 0
            for name in (voice.encode(), self.voice_names.get(voice, b""))
        ):
            raise PipelineFailed(f"espeak-ng has no voice {voice[:40]!r}.")
        self._lib.espeak_SetParameter(ESPEAK_RATE_PARAMETER, rate, 0)

    def say(self, text: str, voice: str, rate: int) -> bytes:
        """Return 16-bit mono samples."""
        raw = text.replace("\0", " ").encode() + b"\0"
        with self._lock:
            self.set_voice(voice, rate)
            self._sample_chunks.clear()
            status = self._lib.espeak_Synth(raw, ctypes.c_size_t(len(raw)), 0, 0, 0, ESPEAK_UTF8, None, None)
            self._lib.espeak_Synchronize()
            if status != 0:
                raise PipelineFailed(f"espeak-ng could not speak the text (status {status}).")
            return b"".join(self._sample_chunks)

    def to_phonemes(self, text: str, voice: str) -> str:
        """Return the phonemes of a text in the IPA, with its punctuation."""
        with self._lock:
            self.set_voice(voice, MAX_WORDS_PER_MINUTE)
            return " ".join(
                self._clause_to_phonemes(clause)
                for clause in _CLAUSE_BREAK.split(text.replace("\0", " "))
                if clause.strip()
            )

    def _clause_to_phonemes(self, clause: str) -> str:
        words = clause.rstrip(f"{PUNCTUATION_MARKS} ")
        mark = clause[len(words) : len(words) + 1].strip()  # the library drops it
        raw = ctypes.create_string_buffer(words.strip().encode())
        rest = ctypes.c_void_p(ctypes.addressof(raw))
        phonemes: list[str] = []
        while rest.value:  # the library advances it, and sets it to null at the end
            part_phonemes = self._lib.espeak_TextToPhonemes(ctypes.byref(rest), ESPEAK_UTF8, ESPEAK_IPA)
            phonemes.append(_LANGUAGE_SWITCH.sub("", (part_phonemes or b"").decode("utf-8", "replace")).strip())
        return " ".join(part for part in phonemes if part) + mark

    def _on_samples(self, samples: Any, count: int, _events: Any) -> int:
        if samples and count > 0:
            self._sample_chunks.append(ctypes.string_at(samples, 2 * count))
        return 0


@functools.cache
def _library() -> EspeakLibrary:
    return EspeakLibrary()
