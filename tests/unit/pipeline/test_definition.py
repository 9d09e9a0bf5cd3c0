"""Pipeline definitions: accepted fields, and the position in every error."""

from __future__ import annotations

import pytest

from svc.errors import UsageError
from svc.pipeline.definition import RegistryLocation, RemoteRegistry, Stage, StageOptions, parse_pipeline

WHOLE = """\
name: assistant
registry:
  local_path: ~/models
  remote: {base_url: "http://127.0.0.1:8080", timeout_ms: 500, retry_attempts: 3}
input: {kind: AudioRaw}
stages:
  - moonshine-tiny-en@1.0.0
  - id: answer
    name: a label
    target: integration
    provider: openai
    model: gpt-4o-mini
    options: {system_prompt: "Be brief.", max_tokens: 50, temperature: 0, top_p: 1.0, timeout_s: 3, gateway_url: "http://h/v1"}
  - {id: speak, target: device, name: voice@2}
  - voice@2
"""


def test_parse_pipeline_all_fields_are_parsed() -> None:
    pipeline = parse_pipeline(WHOLE)
    assert (pipeline.name, pipeline.input) == ("assistant", "audio")
    assert pipeline.registry == RegistryLocation("~/models", RemoteRegistry("http://127.0.0.1:8080", 500, 3))
    options = StageOptions("Be brief.", 50, 0.0, 1.0, 3.0, "http://h/v1")
    assert pipeline.stages == (
        Stage("moonshine-tiny-en", "device", "moonshine-tiny-en@1.0.0"),
        Stage("answer", "integration", provider="openai", model="gpt-4o-mini", options=options),
        Stage("speak", "device", "voice@2"),
        Stage("voice", "device", "voice@2"),
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "https://r.example/x", "file:///srv/registry", "file://~/r"])
def test_parse_pipeline_registry_url_is_accepted(url: str) -> None:
    assert parse_pipeline(f"name: x\nregistry: {url}\nstages: [a@1]").registry == RegistryLocation(
        remote=RemoteRegistry(url)
    )


@pytest.mark.parametrize(
    ("stage", "reference"),
    [
        ("a@1.0", "a@1.0"),
        ("a", "a"),
        ("{name: a@1}", "a@1"),
        ("{id: b, model: a@1}", "a@1"),
        ("{id: a@1}", "a@1"),
        ("{id: b, target: device, name: a@latest}", "a"),
    ],
)
def test_parse_pipeline_device_stage_has_reference(stage: str, reference: str) -> None:
    (made,) = parse_pipeline(f"name: x\nstages: [{stage}]").stages
    assert (made.target, made.reference) == ("device", reference)


def test_parse_pipeline_repeated_bundle_gets_unique_stage_ids() -> None:
    assert [stage.id for stage in parse_pipeline("name: x\nstages: [a@1, a@1, a@1]").stages] == ["a", "a-2", "a-3"]


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", "", "empty"),
        ("[1]", ":1:1", "expected an object"),
        ("name: x", ":1:1", "'stages'"),
        ("stages: [a@1]", ":1:1", "'name'"),
        ("name: x\nstagez: []", ":2:1", "unknown key 'stagez'"),
        ("name: x\nname: y\nstages: [a@1]", ":2:1", "repeated"),
        ("name: 5\nstages: [a@1]", ":1:7", "expected a text"),
        ("name: ''\nstages: [a@1]", ":1:7", "empty"),
        ("name: x\nstages: []", ":2:9", "at least one"),
        ("name: x\nstages: a@1", ":2:9", "must be a list"),
        ("name: x\nstages: [5]", ":2:10", "expected a text"),
        ("name: x\nstages: ['../etc@1']", ":2:10", "not a reference"),
        ("name: x\nstages:\n  - {id: a, name: m@1}\n  - {id: a, name: n@1}", ":4:5", "two stages 'a'"),
        ("name: x\nstages:\n  - {target: cloud, name: a@1}", ":3:14", "unknown target 'cloud'"),
        ("name: x\nstages:\n  - name: a@1\n    target: cloud", ":4:13", "unknown target 'cloud'"),
        ("name: x\nstages:\n  - {target: integration}", ":3:5", "needs a 'model'"),
        ("name: x\nstages:\n  - {target: device}", ":3:5", "needs the name of a bundle"),
        ("name: x\nstages:\n  - {name: a@1, provider: openai}", ":3:5", "'provider'"),
        ("name: x\nstages:\n  - {name: a@1, options: {gateway_url: 'http://x'}}", ":3:5", "'gateway_url'"),
        ("name: x\nstages:\n  - name: a@1\n    options: {max_tokens: 0}", ":4:27", "whole number from 1"),
        ("name: x\nstages:\n  - name: a@1\n    options: {max_tokens: true}", ":4:27", "whole number"),
        ("name: x\nstages:\n  - name: a@1\n    options: {max_tokens: '5'}", ":4:27", "whole number"),
        ("name: x\nstages:\n  - name: a@1\n    options: {temperature: 3}", ":4:28", "from 0 to 2"),
        ("name: x\nstages:\n  - name: a@1\n    options: {temperature: .nan}", ":4:28", "from 0 to 2"),
        ("name: x\nstages:\n  - name: a@1\n    options: {voice: x}", ":4:15", "unknown key 'voice'"),
        ("name: x\nregistry: ftp://x\nstages: [a@1]", ":2:11", "not the URL of a registry"),
        ("name: x\nregistry: http://a..b\nstages: [a@1]", ":2:11", "not the URL of a registry"),
        ("name: x\nregistry: file://host/path\nstages: [a@1]", ":2:11", "has a host"),
        ("name: x\nregistry: {remote: {base_url: nonsense}}\nstages: [a@1]", ":2:31", "not the URL of a registry"),
        (
            "name: x\nstages:\n  - target: integration\n    model: m\n    options: {gateway_url: ftp://x}",
            ":5:28",
            "not an http or https URL",
        ),
        ("name: x\nregistry: {remote: {}}\nstages: [a@1]", ":2:20", "'base_url'"),
        ("name: x\ninput: {kind: Video}\nstages: [a@1]", ":2:15", "unknown input kind"),
        ("name: x\ninput: {kind: Audio}\nstages: [a@1]", ":2:15", "unknown input kind 'Audio'"),
        ("name: x\nstages: [a@1", ":2:13", ""),
        ("name: x\n\tstages: [a@1]", ":2:1", ""),
        ("name: &a x\nstages: [*a]", ":2:10", "aliases"),
        ("name: x\n---\nname: y", "", ""),
        ("name: !!python/object:os.system x\nstages: [a@1]", ":1:7", "expected a text"),
        ("[" * 5000, ":1:17", "too deep"),
    ],
)
def test_parse_pipeline_invalid_definition_error_names_line_and_column(text: str, position: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pipeline(text, "p.yaml")
    assert caught.value.message.startswith(f"p.yaml{position}")
    assert message in caught.value.message


def test_parse_pipeline_too_large_definition_raises_usage_error() -> None:
    with pytest.raises(UsageError, match="larger than"):
        parse_pipeline("#" * (2 << 20))
    with pytest.raises(UsageError, match="more than 100"):
        parse_pipeline("name: x\nstages: [" + ", ".join(f"a{number}@1" for number in range(101)) + "]")
