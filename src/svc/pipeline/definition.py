"""What a pipeline is: YAML, read strictly, every error with its line and column. No I/O.

name: ask                     registry: URL | file://PATH | {local_path, remote: {base_url, timeout_ms, retry_attempts}}
input: {kind: Text}              Text, AudioRaw or Image; optional
stages:
  - moonshine-tiny-en@1.0.0                        # a bundle, run on this machine
  - {id: ask, target: integration, provider: openai, model: gpt-4o-mini, options: {system_prompt: …}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import yaml

from svc.bundles.reference import parse as parse_reference
from svc.errors import InvalidRequest, UsageError

MAX_BYTES = 1 << 20
MAX_STAGES = 100
MAX_DEPTH = 16

Kind = Literal["text", "audio", "image"]
_KINDS: dict[str, Kind] = {"text": "text", "audioraw": "audio", "audio": "audio", "image": "image"}


class Options(msgspec.Struct, frozen=True):
    """Of a stage that asks a language model."""

    system_prompt: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    timeout_s: float | None = None
    gateway_url: str | None = None


class Stage(msgspec.Struct, frozen=True):
    """One step. A device stage has a `reference`, a provider stage a `model`."""

    id: str
    target: Literal["device", "integration"]
    reference: str | None = None
    provider: str | None = None
    model: str | None = None
    options: Options = Options()


class Remote(msgspec.Struct, frozen=True):
    """A registry's server."""

    base_url: str
    timeout_ms: int | None = None
    retry_attempts: int = 0


class Registry(msgspec.Struct, frozen=True):
    """Where bundles come from."""

    local_path: str | None = None
    remote: Remote | None = None


class Pipeline(msgspec.Struct, frozen=True):
    """A whole definition."""

    name: str
    stages: tuple[Stage, ...]
    registry: Registry = Registry()
    input: Kind | None = None


Reader = Callable[[yaml.Node], Any]


def parse(text: str, where: str = "pipeline") -> Pipeline:
    """Reads a definition; `where` begins every message. Raises UsageError: `where:LINE:COLUMN: what is wrong`."""
    return _Reading(where).pipeline(text)


class _Reading:
    """Knows where it reads, so that each error can say so."""

    def __init__(self, where: str) -> None:
        self._where = where

    def pipeline(self, text: str) -> Pipeline:
        root = self._compose(text)
        fields = self._fields(
            root, {"name": self._text, "registry": self._registry, "input": self._input, "stages": self._stages}
        )
        for needed in ("name", "stages"):
            if needed not in fields:
                raise self._wrong(root, f"there is no {needed!r}")
        return Pipeline(**fields)

    def _compose(self, text: str) -> yaml.Node:
        if len(text) > MAX_BYTES:
            raise UsageError(f"{self._where} is larger than {MAX_BYTES >> 20} MiB.")
        try:
            self._survey(text)
            root: yaml.Node | None = yaml.compose(text, yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            said = ", ".join(part for part in (error.context, error.problem) if part)
            raise self._at(error.problem_mark or error.context_mark, said) from None
        except (yaml.YAMLError, RecursionError) as error:
            raise UsageError(f"{self._where} is no valid YAML: {str(error).splitlines()[0] or 'too deep'}.") from None
        if root is None:
            raise UsageError(f"{self._where} is empty; a pipeline has a name and stages.")
        return root

    def _survey(self, text: str) -> None:
        """Refuses what would cost too much to read, before it is read."""
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise self._at(event.start_mark, "aliases are not taken; write it out")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MAX_DEPTH:
                raise self._at(event.start_mark, "this is nested too deep")

    # parts

    def _registry(self, node: yaml.Node) -> Registry:
        if isinstance(node, yaml.ScalarNode):
            url = self._text(node)
            if not url.startswith(("http://", "https://", "file://")):
                raise self._wrong(node, "a registry is an http address, file://PATH, or an object")
            return Registry(remote=Remote(url))
        fields = self._fields(node, {"local_path": self._text, "remote": self._remote})
        return Registry(**fields)

    def _remote(self, node: yaml.Node) -> Remote:
        fields = self._fields(
            node, {"base_url": self._text, "timeout_ms": self._integer(1), "retry_attempts": self._integer(0, 100)}
        )
        if "base_url" not in fields:
            raise self._wrong(node, "there is no 'base_url'")
        return Remote(**fields)

    def _input(self, node: yaml.Node) -> Kind:
        if isinstance(node, yaml.MappingNode):
            fields = self._fields(node, {"kind": lambda value: (value, self._text(value))})
            if "kind" not in fields:
                raise self._wrong(node, "there is no 'kind'")
            node, text = fields["kind"]
        else:
            text = self._text(node)
        if (kind := _KINDS.get(text.lower())) is None:
            raise self._wrong(node, f"there is no input kind {text[:40]!r}; there are Text, AudioRaw and Image")
        return kind

    def _stages(self, node: yaml.Node) -> tuple[Stage, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise self._wrong(node, "'stages' is not a list with at least one stage")
        if len(node.value) > MAX_STAGES:
            raise self._wrong(node, f"there are more than {MAX_STAGES} stages")
        stages: dict[str, Stage] = {}
        for each in node.value:
            stage, named = self._stage(each)
            if stage.id in stages and named:
                raise self._wrong(each, f"there are two stages {stage.id!r}")
            identifier, count = stage.id, 2
            while identifier in stages:
                identifier, count = f"{stage.id}-{count}", count + 1
            stages[identifier] = msgspec.structs.replace(stage, id=identifier)
        return tuple(stages.values())

    def _stage(self, node: yaml.Node) -> tuple[Stage, bool]:
        """A stage, and whether it says its own id."""
        if isinstance(node, yaml.ScalarNode):
            reference = self._reference(node, self._text(node))
            return Stage(reference.partition("@")[0], "device", reference), False
        readers: dict[str, Reader] = dict.fromkeys(("id", "name", "target", "provider", "model"), self._text)
        fields = self._fields(node, {**readers, "target": self._target, "options": self._options})
        if fields.get("target", "device") == "integration":
            return self._provider_stage(node, fields)
        wanted = fields.get("name") or fields.get("model") or fields.get("id")
        if wanted is None:
            raise self._wrong(node, "a device stage names its bundle: name: ID@VERSION")
        reference = self._reference(node, wanted)
        if "provider" in fields:
            raise self._wrong(node, "'provider' is for stages with target: integration")
        options = fields.get("options", Options())
        if options.gateway_url is not None:
            raise self._wrong(node, "'gateway_url' is for stages with target: integration")
        return Stage(
            fields.get("id", reference.partition("@")[0]), "device", reference, options=options
        ), "id" in fields

    def _target(self, node: yaml.Node) -> str:
        target = self._text(node)
        if target not in ("integration", "device"):
            raise self._wrong(node, f"there is no target {target[:40]!r}; there are integration and device")
        return target

    def _provider_stage(self, node: yaml.Node, fields: Mapping[str, Any]) -> tuple[Stage, bool]:
        if "model" not in fields:
            raise self._wrong(node, "a stage with target: integration needs a 'model'")
        identifier = fields.get("id") or fields.get("name") or fields["model"]
        stage = Stage(
            identifier,
            "integration",
            provider=fields.get("provider"),
            model=fields["model"],
            options=fields.get("options", Options()),
        )
        return stage, "id" in fields

    def _options(self, node: yaml.Node) -> Options:
        fields = self._fields(
            node,
            {
                "system_prompt": self._any_text,
                "max_tokens": self._integer(1),
                "temperature": self._number(0, 2),
                "top_p": self._number(0, 1),
                "timeout_s": self._number(0.001, 86400),
                "gateway_url": self._text,
            },
        )
        return Options(**fields)

    def _reference(self, node: yaml.Node, text: str) -> str:
        try:
            return str(parse_reference(text))
        except InvalidRequest as error:
            raise self._wrong(node, f"{text[:80]!r} is no reference ID@VERSION: {error.message}") from None

    # values

    def _fields(self, node: yaml.Node, readers: Mapping[str, Reader]) -> dict[str, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise self._wrong(node, f"this is not an object with {', '.join(readers)}")
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or name not in readers:
                raise self._wrong(key, f"unknown key {str(name)[:40]!r}; known: {', '.join(readers)}")
            if name in found:
                raise self._wrong(key, f"{name!r} is there twice")
            found[name] = readers[name](value)
        return found

    def _any_text(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:str":
            raise self._wrong(node, f"this is not a text{_quoted(node)}")
        return str(node.value)

    def _text(self, node: yaml.Node) -> str:
        text = self._any_text(node)
        if not text.strip() or len(text) > 4096:
            raise self._wrong(node, "this text is empty, or too long")
        return text

    def _integer(self, least: int, most: int = 1 << 31) -> Reader:
        def read(node: yaml.Node) -> int:
            if node.tag != "tag:yaml.org,2002:int" or not least <= (value := self._value(node)) <= most:
                raise self._wrong(node, f"this is not a whole number from {least} on")
            return int(value)

        return read

    def _number(self, least: float, most: float) -> Reader:
        def read(node: yaml.Node) -> float:
            numeric = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
            if not numeric or not least <= (value := self._value(node)) <= most:
                raise self._wrong(node, f"this is not a number from {least:g} to {most:g}")
            return float(value)

        return read

    def _value(self, node: yaml.Node) -> Any:
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (ValueError, yaml.YAMLError):
            raise self._wrong(node, "this is no number") from None

    def _wrong(self, node: yaml.Node, what: str) -> UsageError:
        return self._at(node.start_mark, what)

    def _at(self, mark: yaml.Mark | None, what: str) -> UsageError:
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        return UsageError(f"{self._where}{place}: {what.rstrip('.')}.")


def _quoted(node: yaml.Node) -> str:
    return "; put it in quotes" if isinstance(node, yaml.ScalarNode) and node.value else ""
