"""The definition of a pipeline: strict YAML. Errors state the line and column. No I/O.

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

from svc.bundles.reference import parse_reference
from svc.bundles.registry_url import check_registry_url
from svc.client.address import normalize_url
from svc.errors import InvalidRequest, UsageError

MAX_DEFINITION_BYTES = 1 << 20
MAX_PIPELINE_STAGES = 100
MAX_DEFINITION_DEPTH = 16

DataKind = Literal["text", "audio", "image"]
_INPUT_KINDS: dict[str, DataKind] = {"text": "text", "audioraw": "audio", "image": "image"}


class StageOptions(msgspec.Struct, frozen=True):
    """The options of a stage that calls a language model."""

    system_prompt: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    timeout_s: float | None = None
    gateway_url: str | None = None


class Stage(msgspec.Struct, frozen=True):
    """One stage. A device stage has a `reference`, a provider stage a `model`."""

    id: str
    target: Literal["device", "integration"]
    reference: str | None = None
    provider: str | None = None
    model: str | None = None
    options: StageOptions = StageOptions()


class RemoteRegistry(msgspec.Struct, frozen=True):
    """The server of a registry."""

    base_url: str
    timeout_ms: int | None = None
    retry_attempts: int = 0


class RegistryLocation(msgspec.Struct, frozen=True):
    """Where bundles are resolved: a folder, a server, or both."""

    local_path: str | None = None
    remote: RemoteRegistry | None = None


class Pipeline(msgspec.Struct, frozen=True):
    """A complete definition."""

    name: str
    stages: tuple[Stage, ...]
    registry: RegistryLocation = RegistryLocation()
    input: DataKind | None = None
    locations: Mapping[tuple[str, str], str] = {}
    """(stage id, field) -> `SOURCE:LINE:COLUMN`, for errors that are found later.

    The field is `provider` or `model`, or `stage` for the whole stage. The registry is at ("", `registry`).
    """


def with_registry(pipeline: Pipeline, url: str) -> Pipeline:
    """Return the pipeline with the server of its registry."""
    location = msgspec.structs.replace(pipeline.registry, remote=RemoteRegistry(url))
    return msgspec.structs.replace(pipeline, registry=location)


NodeParser = Callable[[yaml.Node], Any]


def parse_pipeline(text: str, source_name: str = "pipeline") -> Pipeline:
    """Parse a definition. Raises UsageError with `source_name:LINE:COLUMN: problem`."""
    return _DefinitionParser(source_name).parse_document(text)


class _DefinitionParser:
    """Parses one definition and locates errors in it."""

    def __init__(self, source_name: str) -> None:
        self._source_name = source_name
        self._locations: dict[tuple[str, str], str] = {}

    def parse_document(self, text: str) -> Pipeline:
        root = self._compose(text)
        fields = self._parse_fields(
            root,
            {
                "name": self._parse_text,
                "registry": self._parse_registry,
                "input": self._parse_input,
                "stages": self._parse_stages,
            },
        )
        for required in ("name", "stages"):
            if required not in fields:
                raise self._error_at_node(root, f"{required!r} is missing")
        return Pipeline(**fields, locations=self._locations)

    def _compose(self, text: str) -> yaml.Node:
        if len(text) > MAX_DEFINITION_BYTES:
            raise UsageError(f"{self._source_name} is larger than {MAX_DEFINITION_BYTES >> 20} MiB.")
        try:
            self._check_structure(text)
            root: yaml.Node | None = yaml.compose(text, yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            problem = ", ".join(part for part in (error.context, error.problem) if part)
            raise self._error_at_mark(error.problem_mark or error.context_mark, problem) from None
        except (yaml.YAMLError, RecursionError) as error:
            raise UsageError(
                f"{self._source_name} is not valid YAML: {str(error).splitlines()[0] or 'too deep'}."
            ) from None
        if root is None:
            raise UsageError(f"{self._source_name} is empty. A pipeline has a name and stages.")
        return root

    def _check_structure(self, text: str) -> None:
        """Reject aliases and deep nesting before the YAML is composed."""
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise self._error_at_mark(event.start_mark, "aliases are not supported: repeat the value")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MAX_DEFINITION_DEPTH:
                raise self._error_at_mark(event.start_mark, "the nesting is too deep")

    # parts

    def _parse_registry(self, node: yaml.Node) -> RegistryLocation:
        self._locations["", "registry"] = self._location(node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            return RegistryLocation(remote=RemoteRegistry(self._parse_registry_url(node)))
        fields = self._parse_fields(node, {"local_path": self._parse_text, "remote": self._parse_remote})
        return RegistryLocation(**fields)

    def _parse_remote(self, node: yaml.Node) -> RemoteRegistry:
        fields = self._parse_fields(
            node,
            {
                "base_url": self._parse_registry_url,
                "timeout_ms": self._integer_parser(1),
                "retry_attempts": self._integer_parser(0, 100),
            },
        )
        if "base_url" not in fields:
            raise self._error_at_node(node, "'base_url' is missing")
        return RemoteRegistry(**fields)

    def _parse_input(self, node: yaml.Node) -> DataKind:
        if isinstance(node, yaml.MappingNode):
            fields = self._parse_fields(node, {"kind": lambda value: (value, self._parse_text(value))})
            if "kind" not in fields:
                raise self._error_at_node(node, "'kind' is missing")
            node, text = fields["kind"]
        else:
            text = self._parse_text(node)
        if (kind := _INPUT_KINDS.get(text.lower())) is None:
            raise self._error_at_node(node, f"unknown input kind {text[:40]!r}: use Text, AudioRaw or Image")
        return kind

    def _parse_stages(self, node: yaml.Node) -> tuple[Stage, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise self._error_at_node(node, "'stages' must be a list with at least one stage")
        if len(node.value) > MAX_PIPELINE_STAGES:
            raise self._error_at_node(node, f"there are more than {MAX_PIPELINE_STAGES} stages")
        stages: dict[str, Stage] = {}
        for item in node.value:
            stage, has_own_id = self._parse_stage(item)
            if stage.id in stages and has_own_id:
                raise self._error_at_node(item, f"there are two stages {stage.id!r}")
            identifier, count = stage.id, 2
            while identifier in stages:
                identifier, count = f"{stage.id}-{count}", count + 1
            stages[identifier] = msgspec.structs.replace(stage, id=identifier)
            self._record_locations(identifier, item)
        return tuple(stages.values())

    def _record_locations(self, stage_id: str, node: yaml.Node) -> None:
        self._locations[stage_id, "stage"] = self._location(node.start_mark)
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.value in ("provider", "model"):
                self._locations[stage_id, key.value] = self._location(value.start_mark)

    def _parse_stage(self, node: yaml.Node) -> tuple[Stage, bool]:
        """Parse a stage. Return it, and whether it has an explicit id."""
        if isinstance(node, yaml.ScalarNode):
            reference = self._parse_reference(node, self._parse_text(node))
            return Stage(reference.partition("@")[0], "device", reference), False
        parsers: dict[str, NodeParser] = dict.fromkeys(("id", "name", "target", "provider", "model"), self._parse_text)
        fields = self._parse_fields(node, {**parsers, "target": self._parse_target, "options": self._parse_options})
        if fields.get("target", "device") == "integration":
            return self._build_provider_stage(node, fields)
        bundle_name = fields.get("name") or fields.get("model") or fields.get("id")
        if bundle_name is None:
            raise self._error_at_node(node, "a device stage needs the name of a bundle: name: ID@VERSION")
        reference = self._parse_reference(node, bundle_name)
        if "provider" in fields:
            raise self._error_at_node(node, "'provider' requires target: integration")
        options = fields.get("options", StageOptions())
        if options.gateway_url is not None:
            raise self._error_at_node(node, "'gateway_url' requires target: integration")
        return Stage(
            fields.get("id", reference.partition("@")[0]), "device", reference, options=options
        ), "id" in fields

    def _parse_target(self, node: yaml.Node) -> str:
        target = self._parse_text(node)
        if target not in ("integration", "device"):
            raise self._error_at_node(node, f"unknown target {target[:40]!r}: use integration or device")
        return target

    def _build_provider_stage(self, node: yaml.Node, fields: Mapping[str, Any]) -> tuple[Stage, bool]:
        if "model" not in fields:
            raise self._error_at_node(node, "a stage with target: integration needs a 'model'")
        identifier = fields.get("id") or fields.get("name") or fields["model"]
        stage = Stage(
            identifier,
            "integration",
            provider=fields.get("provider"),
            model=fields["model"],
            options=fields.get("options", StageOptions()),
        )
        return stage, "id" in fields

    def _parse_options(self, node: yaml.Node) -> StageOptions:
        fields = self._parse_fields(
            node,
            {
                "system_prompt": self._parse_any_text,
                "max_tokens": self._integer_parser(1),
                "temperature": self._number_parser(0, 2),
                "top_p": self._number_parser(0, 1),
                "timeout_s": self._number_parser(0.001, 86400),
                "gateway_url": self._parse_gateway_url,
            },
        )
        return StageOptions(**fields)

    def _parse_registry_url(self, node: yaml.Node) -> str:
        return self._parse_url(node, check_registry_url)

    def _parse_gateway_url(self, node: yaml.Node) -> str:
        return self._parse_url(node, normalize_url)

    def _parse_url(self, node: yaml.Node, check: Callable[[str], object]) -> str:
        url = self._parse_text(node)
        try:
            check(url)
        except (InvalidRequest, UsageError) as error:
            raise self._error_at_node(node, error.message) from None
        return url

    def _parse_reference(self, node: yaml.Node, text: str) -> str:
        try:
            return str(parse_reference(text))
        except InvalidRequest as error:
            raise self._error_at_node(node, f"{text[:80]!r} is not a reference ID@VERSION: {error.message}") from None

    # values

    def _parse_fields(self, node: yaml.Node, parsers: Mapping[str, NodeParser]) -> dict[str, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error_at_node(node, f"expected an object with {', '.join(parsers)}")
        parsed: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or name not in parsers:
                raise self._error_at_node(key, f"unknown key {str(name)[:40]!r}; known: {', '.join(parsers)}")
            if name in parsed:
                raise self._error_at_node(key, f"{name!r} is repeated")
            parsed[name] = parsers[name](value)
        return parsed

    def _parse_any_text(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:str":
            raise self._error_at_node(node, f"expected a text{_quoting_hint(node)}")
        return str(node.value)

    def _parse_text(self, node: yaml.Node) -> str:
        text = self._parse_any_text(node)
        if not text.strip() or len(text) > 4096:
            raise self._error_at_node(node, "the text is empty or too long")
        return text

    def _integer_parser(self, minimum: int, maximum: int = 1 << 31) -> NodeParser:
        def read(node: yaml.Node) -> int:
            if node.tag != "tag:yaml.org,2002:int" or not minimum <= (value := self._construct_value(node)) <= maximum:
                raise self._error_at_node(node, f"expected a whole number from {minimum} to {maximum}")
            return int(value)

        return read

    def _number_parser(self, minimum: float, maximum: float) -> NodeParser:
        def read(node: yaml.Node) -> float:
            numeric = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
            if not numeric or not minimum <= (value := self._construct_value(node)) <= maximum:
                raise self._error_at_node(node, f"expected a number from {minimum:g} to {maximum:g}")
            return float(value)

        return read

    def _construct_value(self, node: yaml.Node) -> Any:
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (ValueError, yaml.YAMLError):
            raise self._error_at_node(node, "expected a number") from None

    def _error_at_node(self, node: yaml.Node, problem: str) -> UsageError:
        return self._error_at_mark(node.start_mark, problem)

    def _error_at_mark(self, mark: yaml.Mark | None, problem: str) -> UsageError:
        return UsageError(f"{self._location(mark)}: {problem.rstrip('.')}.")

    def _location(self, mark: yaml.Mark | None) -> str:
        return f"{self._source_name}:{mark.line + 1}:{mark.column + 1}" if mark else self._source_name


def _quoting_hint(node: yaml.Node) -> str:
    return ": put it in quotes" if isinstance(node, yaml.ScalarNode) and node.value else ""
