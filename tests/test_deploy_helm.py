"""The Helm chart in `deploy/helm/` agrees with its schema and its guide. `python -m tests.deploy helm` renders it."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from svc import settings
from tests.deploy.helm import compare

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm" / "svc"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
EXAMPLES = sorted((CHART / "ci").glob("*.yaml"))
BASE = ROOT / "deploy" / "kubernetes" / "base"


def properties(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, each in schema.get("properties", {}).items():
        yield f"{path}.{name}", each
        yield from properties(each, f"{path}.{name}")


def paths(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the path of each value that the schema should name."""
    for name, each in values.items():
        yield f"{path}.{name}"
        if isinstance(each, dict) and "properties" in (its := schema["properties"].get(name, {})):
            yield from paths(each, its, f"{path}.{name}")


def merge(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(values)
    for name, each in changes.items():
        merged[name] = merge(merged[name], each) if isinstance(each, dict) and name in merged else each
    return merged


def test_chart_has_the_version_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_schema_describes_exactly_the_values() -> None:
    described = dict(properties(SCHEMA))
    documented = {path for path in described if path != ".global"}
    assert documented == set(paths(VALUES, SCHEMA))
    assert [path for path, each in described.items() if not each.get("description")] == []
    assert all(each["additionalProperties"] is False for each in described.values() if "properties" in each)


@pytest.mark.parametrize("file", [CHART / "values.yaml", *EXAMPLES], ids=lambda file: file.name)
def test_values_match_the_schema_and_hold_a_valid_configuration(file: Path, tmp_path: Path) -> None:
    values = merge(VALUES, yaml.safe_load(file.read_text()))
    jsonschema.Draft7Validator(SCHEMA).validate(values)
    (tmp_path / "svc.toml").write_text(values["config"])
    drain = settings.load({}, config=str(tmp_path / "svc.toml")).gateway.drain_timeout
    assert values["gateway"]["terminationGracePeriodSeconds"] >= 5 + drain + 10


def test_templates_use_existing_values() -> None:
    names = {path for path, _ in properties(SCHEMA)}
    text = "".join(file.read_text() for file in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values((?:\.\w+)+)", text))
    assert {".image.repository", ".registry.s3"} <= used
    assert used - names == set()


def test_default_configuration_is_that_of_kustomize() -> None:
    assert VALUES["config"] == (BASE / "svc.toml").read_text()


def test_secrets_are_those_of_the_guide() -> None:
    guide = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    for name in VALUES["secrets"].values():
        assert f"create secret generic {name} " in guide
    example = yaml.safe_load((CHART / "ci" / "example-values.yaml").read_text())
    (block,) = re.findall(r"ci/example-values.yaml -->\n```yaml\n(.*?)```", guide, flags=re.S)
    assert merge(VALUES, yaml.safe_load(block)) == merge(VALUES, example)


def test_compare_reports_a_different_probe_and_ignores_what_helm_adds() -> None:
    (gateway, _) = yaml.safe_load_all((BASE / "gateway.yaml").read_text())
    other = copy.deepcopy(gateway)
    other["metadata"]["labels"] |= {"helm.sh/chart": "svc-0.1.0", "app.kubernetes.io/managed-by": "Helm"}
    other["metadata"]["annotations"] = {"helm.sh/hook": "pre-install"}
    assert compare([gateway], [other]) == []
    other["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["periodSeconds"] = 11
    (difference,) = compare([gateway], [other])
    assert "livenessProbe.periodSeconds: kustomize has 10, the chart 11" in difference
    assert compare([gateway], []) == ["Deployment gateway: only in kustomize"]
