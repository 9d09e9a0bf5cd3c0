"""Whether a prompt fits a model's context window: guessed from its size, before anything is sent. Pure."""

from __future__ import annotations

from svc.dialects.base import Head
from svc.gateway.estimate import DENSEST, prompt_tokens
from svc.gateway.offers import Offer


def fits(offer: Offer, raw: bytes, head: Head) -> bool:
    """False when the prompt and what is to be answered are larger than the window, by our estimate."""
    window = offer.context_window
    wanted = head.max_tokens or 0
    if offer.target.max_output_tokens is not None:
        wanted = min(wanted, offer.target.max_output_tokens)
    if len(raw) <= (window - wanted) * DENSEST:  # nearly always
        return True
    return prompt_tokens(raw, head.outline) + wanted <= window
