"""The files in `deploy/container/` agree with the program. `make deploy-check` runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from svc import settings
from tests.deploy.dockerfile import DOCKERFILE, INSTALL, read_instructions
from tests.documentation.snippets import snippets

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "container"
GUIDES = ROOT / "docs" / "how-to"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())


def test_dockerfile_agrees_with_the_program() -> None:
    image = read_instructions()
    assert image.port == int(image.environment["PORT"]) == settings.load({}, config=None).gateway.port
    assert (image.entrypoint, image.command[0]) == (["svc"], "gateway")
    assert image.stop_signal == "SIGTERM"
    assert image.user.partition(":")[0] not in ("", "0", "root")
    assert "/health" in image.health_check[-1]
    compile(image.health_check[-1], "HEALTHCHECK", "exec")


def test_dockerfile_extras_are_defined() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for text in (DOCKERFILE.read_text(), INSTALL.read_text()):
        (named,) = re.findall(r"EXTRAS=([\w,]+)", text)
        assert set(named.split(",")) <= set(extras)


def test_dockerfile_has_no_steps_beside_the_script() -> None:
    steps = re.findall(r"^RUN (.*)$", DOCKERFILE.read_text(), flags=re.M)
    assert [re.search(r"sh \S*install\.sh (\w+)", step)[1] for step in steps] == ["program", "system"]  # type: ignore[index]


def test_dockerignore_keeps_the_files_that_are_copied() -> None:
    kept = re.findall(r"^!(.*)$", (FOLDER / "Dockerfile.dockerignore").read_text(), flags=re.M)
    used = re.findall(r"source=(\S+?),", DOCKERFILE.read_text())
    for names in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), flags=re.M):
        used += names.split()
    assert set(used) == set(kept)
    assert all((ROOT / name).is_file() for name in kept if not name.startswith("dist/"))


def test_install_script_without_arguments_prints_usage() -> None:
    assert os.access(INSTALL, os.X_OK)
    done = subprocess.run(["sh", str(INSTALL)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: install.sh")


def test_compose_images_have_versions() -> None:
    for name, service in COMPOSE["services"].items():
        tag = service["image"].partition(":")[2]
        assert tag, name
        assert "latest" not in tag, name
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert COMPOSE["services"]["gateway"]["image"] == f"svc:${{SVC_VERSION:-{version}}}"


def test_compose_files_exist_and_ports_are_those_of_the_image() -> None:
    volumes = set(COMPOSE["volumes"])
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in volumes or (FOLDER / source).exists(), source
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert set(service.get("depends_on", [])) <= set(COMPOSE["services"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    gateway = COMPOSE["services"]["gateway"]
    image = read_instructions()
    assert gateway["ports"] == [f"127.0.0.1:3000:{image.port}"]
    assert gateway["command"][0] == image.command[0]
    (drain,) = re.findall(r"\d+", gateway["stop_grace_period"])
    config = settings.load({}, config=str(FOLDER / "svc.toml"))
    assert config.gateway.drain_timeout < int(drain)


def test_compose_has_no_secrets() -> None:
    for service in COMPOSE["services"].values():
        for name, value in service.get("environment", {}).items():
            if "PASSWORD" in name or "KEY" in name:
                assert value.startswith("${") or name.endswith("_FILE"), name
    ignored = (FOLDER / ".gitignore").read_text().split()
    assert set(ignored) == {".env", "secrets/"}
    assert all(each["file"].startswith("./secrets/") for each in COMPOSE["secrets"].values())


def test_compose_prometheus_scrapes_the_gateway_and_reads_the_rules() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    mounted = {volume.split(":")[1] for volume in COMPOSE["services"]["prometheus"]["volumes"]}
    assert set(config["rule_files"]) <= mounted
    (job,) = config["scrape_configs"]
    assert job["job_name"].startswith("svc")  # the rule SvcDown looks for it
    assert job["static_configs"] == [{"targets": [f"gateway:{read_instructions().port}"]}]
    assert job["authorization"]["credentials_file"] == "/run/secrets/metrics_key"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_compose_prometheus_accepts_the_configuration() -> None:
    command = ["promtool", "check", "config", "--syntax-only", str(FOLDER / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_grafana_reads_the_dashboards() -> None:
    mounted = dict(volume.split(":")[:2] for volume in COMPOSE["services"]["grafana"]["volumes"])
    (provider,) = yaml.safe_load((FOLDER / "grafana/dashboards/svc.yml").read_text())["providers"]
    assert mounted["../grafana"] == provider["options"]["path"]
    (source,) = yaml.safe_load((FOLDER / "grafana/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert mounted["./grafana"] == "/etc/grafana/provisioning"


def test_guides_show_the_files() -> None:
    page = (GUIDES / "run-in-a-container.md").read_text(encoding="utf-8")
    shown = [each.text.strip() for each in snippets(page) if each.language == "dockerfile"]
    assert shown == [DOCKERFILE.read_text(encoding="utf-8").strip()]
