"""The Python SDK, from the signatures and docstrings of `svc.client`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import svc
from svc.client.bundles import Bundle
from svc.client.chat import ChatChunk, ChatResult, ChatUsage
from svc.client.client import ChatStream, ClientPipeline, Live, ResponseStream
from svc.client.core import ModelInfo
from svc.client.embeddings import EmbeddingResult, EmbeddingUsage
from svc.client.pipelines import PipelineResult, PipelineStageResult
from svc.client.responses import ResponseResult, ResponseStreamEvent, ResponseUsage
from svc.client.tool_calls import ChatToolCall, ChatToolCallDelta
from svc.client.transcripts import Transcript
from svc.wire.speech import Final, Partial
from tests.documentation.reference.markdown import docstring, paragraph, table

CLASSES = (svc.Client, ChatStream, ResponseStream, Live, ClientPipeline)
RESULTS = (
    ChatResult,
    ChatChunk,
    ChatUsage,
    ChatToolCall,
    ChatToolCallDelta,
    EmbeddingResult,
    EmbeddingUsage,
    ResponseResult,
    ResponseStreamEvent,
    ResponseUsage,
    ModelInfo,
    Transcript,
    Partial,
    Final,
    Bundle,
    PipelineResult,
    PipelineStageResult,
)
FUNCTIONS = (svc.init, svc.set_gateway_url, svc.set_api_key)


def functions() -> str:
    """A section for each function of the package."""
    return "\n".join(_callable(f"svc.{each.__name__}", each) for each in FUNCTIONS)


def classes() -> str:
    """A section for each class, with its methods."""
    sections = []
    for each in CLASSES:
        public = f"svc.{each.__name__}" if hasattr(svc, each.__name__) else each.__name__
        sections.append(_callable(public, each) if each is svc.Client else f"### `{public}`\n\n{_text(each)}\n")
        sections += [_callable(f"{each.__name__}.{name}", method, "####") for name, method in _methods(each)]
    return "\n".join(sections)


def results() -> str:
    """A section for each object that a method returns."""
    sections = []
    for each in RESULTS:
        notes = inspect.get_annotations(each)
        rows = [(f"`{name}`", f"`{notes[name]}`") for name in each.__struct_fields__]
        for name, member in _methods(each):
            if isinstance(member, property):
                rows.append((f"`{name}`", f"`{inspect.get_annotations(member.fget)['return']}`"))
        sections.append(f"### `{each.__name__}`\n\n{_text(each)}\n\n{table(('Field', 'Type'), rows)}")
    return "\n".join(sections)


def _methods(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, member


def _callable(name: str, member: Any, level: str = "###") -> str:
    if isinstance(member, property):
        return f"{level} `{name}`\n\n{_text(member)}\n"
    parameters = [each for each in inspect.signature(member).parameters.values() if each.name not in ("self", "direct")]
    shown = inspect.Signature(parameters, return_annotation=inspect.signature(member).return_annotation)
    line = f"{name}{shown}".replace("'", "").removesuffix(" -> None")
    fence = f"<!-- excerpt: a signature -->\n```python\n{_wrap(line)}\n```\n"
    return f"{level} `{name}`\n\n{fence}\n{_text(member)}\n"


def _wrap(line: str) -> str:
    """One parameter in a line where the whole is too long."""
    if len(line) <= 100:
        return line
    head, _, rest = line.partition("(")
    parameters, _, result = rest.rpartition(")")
    return f"{head}(\n    " + ",\n    ".join(parameters.split(", ")) + f",\n){result}"


def _text(thing: object) -> str:
    return "\n\n".join(paragraph(part) for part in docstring(thing).split("\n\n"))


REGIONS: dict[str, Callable[[], str]] = {"sdk.functions": functions, "sdk.classes": classes, "sdk.results": results}
