"""Models and audio clips of the speech tests. Recipes build them once, beside the virtual environment."""

import os
import re
import sys
from pathlib import Path

import numpy as np

from svc.recipes import make
from svc.recipes.recipe import load_recipe, parse_recipe
from svc.speech.audio import parse_wav
from svc.speech.resample import Resampler, to_mono_floats
from svc.stores.bundles.install import ensure_installed

HOME = Path(os.environ.get("SVC_TEST_SPEECH") or Path(sys.prefix) / "test-speech")
SHARED = Path(os.environ.get("SVC_SHARED", Path(__file__).resolve().parents[3] / "shared"))

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
TEXTS = {
    "beckett": "ever tried ever failed no matter try again fail again fail better",
    "en-counting": "one two three four five six seven eight nine ten",
    "en-hello-world": "hello world",
    "en-quick-brown-fox": "the quick brown fox jumps over the lazy dog",
    "two-cities": "it was the best of times it was the worst of times it was the age of wisdom it was the age of "
    "foolishness it was the epoch of belief it was the epoch of incredulity it was the season of light it was the "
    "season of darkness it was the spring of hope it was the winter of despair we had everything before us we had "
    "nothing before us we were all going direct to heaven we were all going direct the other way in short the period "
    "was so far like the present period that some of its noisiest authorities insisted on its being received for good "
    "or for evil in the superlative degree of comparison only",
}
"""The words of each English clip."""


def ignore_progress(label: str, done: int, total: int) -> None:
    """Show no progress bar in tests."""


def make_model(name: str = "moonshine-tiny-en", root: Path = HOME / "registry") -> Path:
    """Return the model's folder. Build it if it is missing."""
    recipe = load_recipe(name, Path("/nonexistent"))
    make.make_model(recipe, root, ignore_progress)
    return make.content_folder(recipe, root)


def make_voices() -> Path:
    """Return a registry folder with the voices and the model that understands them. Other tests load no voice."""
    for name in ("moonshine-tiny-en", "espeak-en-us", "piper-joe-en-us"):
        add_bundle(name, HOME / "voices")
    return HOME / "voices"


def add_bundle(name: str, root: Path) -> None:
    """Do what `svc models add` does."""
    ensure_installed(make_model(name, root), root)


def make_clips() -> dict[str, Path]:
    """Return every clip by name."""
    recipe = parse_recipe((Path(__file__).parent / "clips.toml").read_bytes(), "test-clips")
    make.make_model(recipe, HOME / "clips", ignore_progress)
    return {path.stem: path for path in sorted(make.content_folder(recipe, HOME / "clips").glob("*.wav"))}


def read_pcm(path: Path) -> bytes:
    """Return a WAV file as 16 kHz mono PCM, the format of the WebSocket."""
    wav = parse_wav(path.read_bytes())
    resampler = Resampler(wav.format.rate)
    floats = np.concatenate((resampler.push(to_mono_floats(wav.samples, wav.format)), resampler.finish()))
    return (np.clip(floats, -1, 1) * 32767).astype("<i2").tobytes()


def words(text: str) -> list[str]:
    """Return lower-case words without punctuation. Small numbers and titles are spelled out."""
    spoken = {"mr": "mister", **{str(number): word for number, word in enumerate(NUMBERS)}}
    plain = re.sub(r"[^\w' ]+", " ", text.lower().replace("-", " ")).replace("'", "")
    return [spoken.get(word, word) for word in plain.split()]


def count_word_errors(expected: str, actual: str) -> int:
    """Return the word-level edit distance."""
    expected_words, actual_words = words(expected), words(actual)
    row = list(range(len(actual_words) + 1))
    for count, word in enumerate(expected_words, 1):
        previous, row = row, [count]
        for place, other in enumerate(actual_words, 1):
            row.append(min(previous[place] + 1, row[-1] + 1, previous[place - 1] + (word != other)))
    return row[-1]
