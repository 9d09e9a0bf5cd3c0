"""Validates manifests with the schemas of Kubernetes, which the package kubernetes-validate carries."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.deploy.checks import CheckFailed, run, say

ROOT = Path(__file__).resolve().parents[2]
VALIDATE = ROOT / ".deploy" / "bin" / "kubernetes-validate"
OVERLAY = ROOT / "deploy" / "kubernetes" / "overlays" / "example"
KUBERNETES_VERSIONS = ("1.27", "1.34")


def check_manifests() -> None:
    """Build the overlay with kustomize, and validate every object. Raises CheckFailed."""
    check_kubectl()
    with tempfile.TemporaryDirectory(prefix="svc-deploy-") as folder:
        built = Path(folder) / "built.yaml"
        built.write_text(run(["kubectl", "kustomize", str(OVERLAY)]))
        validate(built)


def check_kubectl() -> None:
    if not shutil.which("kubectl"):
        raise CheckFailed("kubectl is missing; install it, for example with: apt-get install kubernetes-client")


def validate(manifests: Path) -> None:
    """Validate every object of a file. Unknown fields are errors. Raises CheckFailed."""
    if not VALIDATE.exists():
        raise CheckFailed(f"{VALIDATE} is missing: run make deploy-check")
    for version in KUBERNETES_VERSIONS:
        output = run([str(VALIDATE), "--strict", "-k", version, str(manifests)])
        say(f"  {output.count(' passed for ')} objects are valid in Kubernetes {version}")
