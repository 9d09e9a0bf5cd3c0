"""The Moonshine engine: an encoder and a decoder with a key-value cache, run by ONNX Runtime.

samples ─▶ encoder ─▶ frames of 24 ms ─▶ decoder ─▶ tokens      decoder: one pass for the draft, then one per new token

The draft of a hypothesis is the previous hypothesis of the segment. One pass computes what greedy search would choose
after each token of the draft. The tokens before the first difference are kept. Apart from rounding, the result is that
of greedy search without a draft (speculative decoding, https://arxiv.org/abs/2211.17192).
"""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from svc.errors import SpeechFailed
from svc.speech.ipc import Hypothesis
from svc.speech.model import RecognitionModel
from svc.speech.resample import Samples

FIRST_TOKEN, END_TOKEN = 1, 2
FIRST_TEXT_TOKEN = 3
MAX_TOKENS_PER_SECOND = 6.5
"""The rate of the model's authors. It ends endless repetitions."""
FRAME_SAMPLES = 384
"""Samples between two frames of the encoder."""
MIN_DECODABLE_SAMPLES = 1600
"""The encoder fails on less than about 0.06 s."""
APPENDED_SILENCE = np.zeros(5120, np.float32)
"""Silence after a segment. Without it, a word that is cut off makes the model repeat itself or write digits."""
WORD_BOUNDARY = "\u2581".encode()

Frames = NDArray[np.float32]
_NO_MASK = np.ones((1, 1), np.int64)
"""The decoder's attention mask for one segment: it is broadcast to all frames."""


def load(model: RecognitionModel) -> MoonshineEngine:
    """Load the model. Raises SpeechFailed for an unknown option or another family."""
    return MoonshineEngine(model)


class MoonshineEngine:
    """A loaded model."""

    is_incremental = False
    has_word_times = False

    def __init__(self, model: RecognitionModel) -> None:
        if model.family != "moonshine":
            raise SpeechFailed(f"The engine moonshine does not support the family {model.family!r}.")
        if unknown := model.options.keys() - {"num_threads"}:
            raise SpeechFailed(f"The engine moonshine has no option {min(unknown)!r}.")
        threads = int(model.options.get("num_threads", 1))
        self.encoder = _create_session(model.files["encoder"], threads)
        self._decoder = _create_session(model.files["decoder"], threads)
        self._tokens = _read_tokens(Path(model.files["tokens"]))
        outputs = [output.name for output in self._decoder.get_outputs()[1:]]
        self._cache_names = [name.replace("present", "past_key_values") for name in outputs]
        shapes = {node.name: node.shape for node in self._decoder.get_inputs()}
        self._empty_cache = {
            name: np.zeros((1, shapes[name][1], 0 if ".decoder." in name else 1, shapes[name][3]), np.float32)
            for name in self._cache_names
        }

    def begin_segment(self, language: str | None, *, with_words: bool = False) -> MoonshineSegmentDecoder:
        """Return a decoder for a new segment. The language is that of the model."""
        return MoonshineSegmentDecoder(self)

    def encode(self, samples: Samples) -> Frames:
        """Return the frames, an array of shape (1, frames, width)."""
        mask = np.ones((1, len(samples)), np.int64)
        frames: Frames = self.encoder.run(None, {"input_values": samples[None], "attention_mask": mask})[0]
        return frames

    def decode(self, frames: Frames, draft: list[int]) -> list[int]:
        """Return the tokens that greedy search finds. It takes less time if they begin with those of the draft."""
        max_tokens = int(frames.shape[1] * FRAME_SAMPLES / 16000 * MAX_TOKENS_PER_SECOND)
        tokens = draft[:max_tokens]
        best, cache = self._run_decoder(frames, [FIRST_TOKEN, *tokens], self._empty_cache, is_first=True)
        accepted = next((place for place, token in enumerate(tokens) if token != best[place]), len(tokens))
        tokens, next_token = tokens[:accepted], best[accepted]
        for name in self._cache_names:
            if ".decoder." in name:
                cache[name] = cache[name][:, :, : accepted + 1]
        while next_token != END_TOKEN and len(tokens) < max_tokens:
            tokens.append(next_token)
            (next_token,), new_cache = self._run_decoder(frames, [next_token], cache, is_first=False)
            cache.update((name, value) for name, value in new_cache.items() if ".decoder." in name)
        return tokens

    def _run_decoder(
        self, frames: Frames, tokens: list[int], cache: dict[str, Any], *, is_first: bool
    ) -> tuple[list[int], dict[str, Any]]:
        """Return the most probable next token after each of `tokens`, and the new cache."""
        logits, *values = self._decoder.run(
            None,
            {
                "encoder_attention_mask": _NO_MASK,
                "encoder_hidden_states": frames,
                "input_ids": np.array([tokens], np.int64),
                "use_cache_branch": np.array([not is_first]),
                **cache,
            },
        )
        return logits[0].argmax(axis=-1).tolist(), dict(zip(self._cache_names, values, strict=True))

    def to_text(self, tokens: list[int]) -> str:
        """Join the tokens."""
        data = b"".join(self._tokens[token] for token in tokens if token >= FIRST_TEXT_TOKEN)
        return data.replace(WORD_BOUNDARY, b" ").decode(errors="ignore").strip()


class MoonshineSegmentDecoder:
    """The decoder of one segment. It keeps the tokens of the last hypothesis. Two threads may use it at a time."""

    def __init__(self, engine: MoonshineEngine) -> None:
        self._engine = engine
        self._draft: list[int] = []

    def decode_partial(self, samples: Samples) -> Hypothesis:
        """Decode the segment so far."""
        if len(samples) < MIN_DECODABLE_SAMPLES:
            return Hypothesis("")
        frames = self._engine.encode(np.concatenate((samples, APPENDED_SILENCE)))
        self._draft = self._engine.decode(frames, self._draft)
        return Hypothesis(self._engine.to_text(self._draft))

    decode_final = decode_partial


def _create_session(path: str, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _read_tokens(path: Path) -> list[bytes]:
    """Read tokens.txt: a line `base64(token) number` for each token, in the order of the numbers."""
    return [b64decode(line.rpartition(b" ")[0]) for line in path.read_bytes().splitlines()]
