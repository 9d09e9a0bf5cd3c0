"""The files in `deploy/kubernetes/` agree with the program. `make deploy-check` uses Kubernetes' schemas."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from svc import settings
from svc.gateway.observability.prometheus import METRIC_HELP
from tests.deploy.dockerfile import read_instructions

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
BASE = FOLDER / "base"
EXAMPLE = FOLDER / "overlays" / "example"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def objects(folder: Path) -> list[dict[str, Any]]:
    """Return the objects in the files that a kustomization lists."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    files = [folder / name for name in listed if (folder / name).is_file()]
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def find(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in objects(BASE) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


MIGRATION = find("Job", "migration")
WORKLOADS = {"gateway": find("Deployment", "gateway"), "registry": find("StatefulSet", "registry")}


def container(name: str) -> dict[str, Any]:
    (found,) = WORKLOADS[name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_kustomizations_list_all_files() -> None:
    for folder in (BASE, EXAMPLE):
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        listed = {name for name in kustomization["resources"] if not name.startswith("..")}
        generated = {name for one in kustomization.get("configMapGenerator", []) for name in one["files"]}
        assert listed | generated == {path.name for path in folder.iterdir()} - {"kustomization.yaml"}
    settings.load({}, config=str(BASE / "svc.toml"))


@pytest.mark.parametrize("workload", [*WORKLOADS.values(), MIGRATION], ids=lambda each: each["metadata"]["name"])
def test_workloads_run_without_privileges(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    user, _, group = read_instructions().user.partition(":")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]) == (int(user), int(group))
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False  # variables such as SVC_PORT would look like settings
    (one,) = pod["containers"]
    security = one["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_image_ports_and_probes_agree_with_the_program(name: str) -> None:
    one = container(name)
    image = read_instructions()
    assert one["image"] == f"svc:{VERSION}"
    (port,) = one["ports"]
    assert port == {"name": "http", "containerPort": image.port if name == "gateway" else 8080}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert one[probe]["httpGet"] == {"path": "/health", "port": "http"}
    mounts = {mount["mountPath"] for mount in one["volumeMounts"]}
    assert {image.environment["SVC_HOME"], "/tmp"} <= mounts
    assert one["resources"]["limits"]["memory"]


def test_migration_runs_a_command_on_the_database_of_the_gateway() -> None:
    (one,) = MIGRATION["spec"]["template"]["spec"]["containers"]
    assert one["image"] == container("gateway")["image"]
    assert one["env"] == [each for each in container("gateway")["env"] if each["name"] == "SVC_DATABASE_URL"]
    assert (ROOT / "src" / "svc" / "cli" / f"{one['args'][0]}.py").is_file()


def test_gateway_has_time_to_drain() -> None:
    pod = WORKLOADS["gateway"]["spec"]["template"]["spec"]
    wait = int(container("gateway")["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = settings.load({}, config=str(BASE / "svc.toml")).gateway.drain_timeout
    assert pod["terminationGracePeriodSeconds"] >= wait + drain + 10


def test_registry_serves_until_clients_know_that_it_ends() -> None:
    wait = int(container("registry")["lifecycle"]["preStop"]["exec"]["command"][1])
    assert WORKLOADS["registry"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= wait + 30


def test_gateway_reaches_providers_with_ipv4_and_ipv6_but_no_metadata_service() -> None:
    egress = find("NetworkPolicy", "gateway")["spec"]["egress"]
    rules = [rule for rule in egress if {"protocol": "TCP", "port": 443} in rule["ports"]]
    networks = {to["ipBlock"]["cidr"]: to["ipBlock"].get("except") for rule in rules for to in rule["to"]}
    assert networks == {"0.0.0.0/0": ["169.254.169.254/32"], "::/0": ["fd00:ec2::254/128", "fd20:ce::254/128"]}


def test_ingress_permits_the_bodies_and_times_of_the_gateway() -> None:
    (ingress,) = [each for each in objects(EXAMPLE) if each["kind"] == "Ingress"]
    limits = settings.load({}, config=str(BASE / "svc.toml")).gateway
    annotations = {name.rpartition("/")[2]: text for name, text in ingress["metadata"]["annotations"].items()}
    assert annotations["proxy-body-size"] == f"{limits.max_body:.0f}m"
    assert annotations["proxy-read-timeout"] == annotations["proxy-send-timeout"] == f"{limits.total_timeout:.0f}"


def test_objects_select_the_pods() -> None:
    for name, workload in WORKLOADS.items():
        labels = {"app.kubernetes.io/name": name}
        assert workload["spec"]["selector"]["matchLabels"] == labels
        assert workload["spec"]["template"]["metadata"]["labels"] == labels
        assert find("Service", name)["spec"]["selector"] == labels
        assert find("NetworkPolicy", name)["spec"]["podSelector"]["matchLabels"] == labels
    assert find("PodDisruptionBudget", "gateway")["spec"]["selector"]["matchLabels"] == labels_of("gateway")


def labels_of(name: str) -> dict[str, str]:
    return dict(WORKLOADS[name]["spec"]["selector"]["matchLabels"])


def test_autoscaler_uses_a_metric_of_the_gateway() -> None:
    spec = find("HorizontalPodAutoscaler", "gateway")["spec"]
    assert (spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]) == ("Deployment", "gateway")
    assert "replicas" not in WORKLOADS["gateway"]["spec"]
    names = [metric["pods"]["metric"]["name"] for metric in spec["metrics"] if metric["type"] == "Pods"]
    assert names == ["svc_open_streams"]
    assert METRIC_HELP["svc_open_streams"][0] == "gauge"
    assert spec["minReplicas"] > find("PodDisruptionBudget", "gateway")["spec"]["maxUnavailable"]


def test_secrets_are_references_that_the_guide_creates() -> None:
    assert not [each for each in objects(BASE) + objects(EXAMPLE) if each["kind"] == "Secret"]
    guide = (ROOT / "docs" / "how-to" / "deploy-on-kubernetes.md").read_text(encoding="utf-8")
    for name in WORKLOADS:
        for variable in container(name)["env"]:
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                assert f"create secret generic {reference['name']} " in guide
                assert f"--from-literal {reference['key']}=" in guide
    assert "create secret generic svc-provider-keys" in guide


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_overlay_is_built_by_kustomize() -> None:
    command = ["kubectl", "kustomize", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert len(built) == len(objects(BASE)) + len(objects(EXAMPLE)) + 1  # and the ConfigMap
    pods = [each["spec"]["template"]["spec"] for each in built if each["kind"] in ("Deployment", "StatefulSet", "Job")]
    assert {pod["containers"][0]["image"] for pod in pods} == {f"registry.example/svc:{VERSION}"}
    (config,) = [each["metadata"]["name"] for each in built if each["kind"] == "ConfigMap"]
    assert config.startswith("svc-config-")
    assert any({"name": "config", "configMap": {"name": config}} in pod["volumes"] for pod in pods)
