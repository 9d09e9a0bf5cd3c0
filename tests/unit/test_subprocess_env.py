"""The environment variables passed to child processes that parse input."""

import pytest

from svc.pipeline.cluster import cluster_environment
from svc.pipeline.definition import parse_pipeline
from svc.subprocess_env import build_subprocess_env
from tests.processes import SECRETS


def test_subprocess_env_excludes_secrets(monkeypatch: pytest.MonkeyPatch):
    for name, value in {**SECRETS, "OMP_NUM_THREADS": "3", "LC_ALL": "C", "PATH": "/bin"}.items():
        monkeypatch.setenv(name, value)
    passed = build_subprocess_env(GIVEN="1")
    assert not set(SECRETS) & set(passed)
    assert {"OMP_NUM_THREADS": "3", "LC_ALL": "C", "PATH": "/bin", "GIVEN": "1"}.items() <= passed.items()


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("{id: ask, target: integration, model: m}", {"SVC_REGISTRY_KEY", "SVC_GATEWAY_URL", "OPENAI_API_KEY"}),
        ("{id: hear, target: device, model: m@1}", {"SVC_REGISTRY_KEY", "SVC_GATEWAY_URL"}),
    ],
)
def test_cluster_environment_includes_only_variables_that_stages_use(stage: str, expected: set[str]):
    environ = {
        **dict.fromkeys(("SVC_REGISTRY_KEY", "SVC_GATEWAY_URL", "SVC_REDIS_URL", "SVC_HOME"), "1"),
        **{name: value for name, value in SECRETS.items() if not name.startswith("PROVIDER_")},
    }
    assert set(cluster_environment(parse_pipeline(f"name: p\nstages: [{stage}]\n", "p.yaml"), environ)) == expected
