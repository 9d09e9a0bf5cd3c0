"""Type-checks and bundles the programs in examples/sdk, and runs the one for ONNX models in Chromium."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from playwright.sync_api import sync_playwright

from tests.e2e.harness import run
from tests.typescript_sdk.browser import launch, serve
from tests.typescript_sdk.bundling import bundle, bundle_all, check_types, copy_examples
from tests.typescript_sdk.node import ROOT

ONNX_LOCK = Path(__file__).parent / "onnx"
ONNX_CACHE = ROOT / ".cache" / "sdk-onnx"
WEIGHTS = np.array([[1.0, -2.0], [0.5, 0.25], [3.0, 4.0]], np.float32)
BIAS = np.array([0.125, -1.0], np.float32)
INPUT = [1.0, 2.0, -0.5]
PIPELINE = "name: scores\nstages: [tiny-onnx@1.0.0]\n"
METADATA = {
    "model_id": "tiny-onnx",
    "version": "1.0.0",
    "execution_template": {"type": "Onnx", "model_file": "model.onnx"},
    "files": ["model.onnx"],
}
PAGE = """
import { Client } from "@svc/client";
import { registerOnnx } from "./onnx.mjs";

globalThis.scores = async ({ registryUrl, pipeline, input }) => {
  registerOnnx();
  return (await new Client({ registryUrl }).pipeline(pipeline).run(input)).output.text;
};
"""


def check_examples(folder: Path, environment: Mapping[str, str]) -> None:
    """Type-check and bundle the examples in a project that has the packed SDK."""
    sources = copy_examples(folder)
    for path in (_install_onnx(environment) / "node_modules").glob("onnxruntime-*"):
        (folder / "node_modules" / path.name).symlink_to(path)
    check_types(sources, environment)
    bundle_all(sources, folder / "bundled", environment)


def check_onnx(folder: Path, environment: Mapping[str, str], registry: str, root: Path) -> None:
    """Run a pipeline with an ONNX model in Chromium. The output is that of `svc run`, and of the numbers themselves."""
    home = folder / "onnx-home"
    _publish_model(home, root)
    (folder / "scores.yaml").write_text(PIPELINE, encoding="utf-8")
    variables = {"SVC_REGISTRY_URL": registry}
    text = json.dumps(INPUT)
    done = run("run", str(folder / "scores.yaml"), "--input", text, "--json", home=home, env=variables)
    assert done.returncode == 0, done.stderr
    expected = np.array(INPUT, np.float32) @ WEIGHTS + BIAS
    np.testing.assert_allclose(np.ravel(json.loads(json.loads(done.stdout)["output"]["text"])), expected, rtol=1e-6)
    site = folder / "onnx-site"
    site.mkdir()
    page_script = folder / "examples" / "page.mjs"
    page_script.write_text(PAGE, encoding="utf-8")
    bundle(page_script, site / "page.js", environment, "browser")
    for path in (ONNX_CACHE / "node_modules" / "onnxruntime-web" / "dist").glob("ort-wasm-simd-threaded.*"):
        shutil.copyfile(path, site / path.name)
    (site / "index.html").write_text('<!doctype html><script type="module" src="page.js"></script>')
    with serve(site) as port, sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page()
        page.set_default_timeout(90_000)
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_function("() => globalThis.scores !== undefined")
        settings: dict[str, Any] = {"registryUrl": registry, "pipeline": PIPELINE, "input": text}
        output = page.evaluate("(settings) => scores(settings)", settings)
        browser.close()
    np.testing.assert_allclose(json.loads(output), expected, rtol=1e-6)


def _publish_model(home: Path, root: Path) -> None:
    """Add a bundle with a model of one layer to the registry."""
    content = home / "tiny-onnx"
    content.mkdir(parents=True)
    node = helper.make_node("Gemm", ["x", "weights", "bias"], ["scores"])
    graph = helper.make_graph(
        [node],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(WEIGHTS, "weights"), numpy_helper.from_array(BIAS, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (content / "model.onnx").write_bytes(model.SerializeToString())
    (content / "model_metadata.json").write_text(json.dumps(METADATA))
    file = home / "tiny-onnx.xyb"
    for command in (
        ("bundle", "pack", str(content), "-o", str(file)),
        ("registry", "add", str(file), "--root", str(root)),
    ):
        done = run(*command, home=home)
        assert done.returncode == 0, done.stderr


def _install_onnx(environment: Mapping[str, str]) -> Path:
    """Install onnxruntime-web from its lock, unless it is there. It has 150 MB, so the SDK does not depend on it."""
    digest = hashlib.sha256((ONNX_LOCK / "package-lock.json").read_bytes()).hexdigest()
    stamp = ONNX_CACHE / "node_modules" / ".lock-hash"
    if not stamp.is_file() or stamp.read_text(encoding="ascii") != digest:
        ONNX_CACHE.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(ONNX_LOCK / name, ONNX_CACHE / name)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(command, cwd=ONNX_CACHE, env=environment, check=True)
        stamp.write_text(digest, encoding="ascii")
    return ONNX_CACHE
