"""The chat call that the language model stages share."""

from __future__ import annotations

from collections.abc import Iterator

from svc.client.client import Client
from svc.errors import InvalidRequest
from svc.pipeline.definition import StageOptions
from svc.pipeline.stages.base import StageChunk, StageRunInfo, StageUsage, join_text


def stream_chat(
    client: Client, model: str, options: StageOptions, input_chunks: Iterator[StageChunk], run_info: StageRunInfo
) -> Iterator[StageChunk]:
    """Yield the text of the response as it is streamed. Raises SvcError."""
    text = join_text(input_chunks)
    if not text.strip():
        raise InvalidRequest("The prompt is empty: the previous stage produced no text.")
    messages = [{"role": "user", "content": text}]
    if options.system_prompt:
        messages.insert(0, {"role": "system", "content": options.system_prompt})
    with client.chat(
        messages,
        model=model,
        stream=True,
        timeout_s=options.timeout_s,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
    ) as stream:
        run_info.provider = stream.provider
        for chunk in stream:
            if chunk.finish_reason is not None:
                run_info.finish_reason = chunk.finish_reason
            if chunk.text:
                yield chunk.text
        if (usage := stream.usage) is not None:
            run_info.usage = StageUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
