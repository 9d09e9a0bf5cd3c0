"""Asking a language model through a client: what the stages that do share."""

from __future__ import annotations

from collections.abc import Iterator

from svc.client.client import Client
from svc.errors import InvalidRequest
from svc.pipeline.definition import Options
from svc.pipeline.stages.base import Item, Told, Usage, text_of


def ask(client: Client, model: str, options: Options, given: Iterator[Item], told: Told) -> Iterator[Item]:
    """The answer's text as it comes. Raises SvcError."""
    text = text_of(given)
    if not text.strip():
        raise InvalidRequest("There is nothing to ask: the text that came is empty.")
    turns = [{"role": "user", "content": text}]
    if options.system_prompt:
        turns.insert(0, {"role": "system", "content": options.system_prompt})
    with client.chat(
        turns,
        model=model,
        stream=True,
        timeout_s=options.timeout_s,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
    ) as stream:
        for piece in stream:
            if piece.text:
                yield piece.text
        if (usage := stream.usage) is not None:
            told.usage = Usage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
