"""Copies the programs in examples/sdk to a project, checks their types, and bundles them with Rolldown."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.typescript_sdk.node import ROOT, SDK

EXAMPLES = ROOT / "examples" / "sdk"
TOOLS = SDK / "node_modules" / ".bin"
PHONE_PACKAGES = ("expo", "expo/fetch", "expo-audio", "react-native")
"""The imports of the Expo app from packages that only `make sdk` installs."""
ONNX_PACKAGE = "onnxruntime-web/wasm"
COMPILER = {
    "allowJs": True,
    "checkJs": True,
    "noEmit": True,
    "target": "ES2022",
    "skipLibCheck": True,
    "module": "esnext",
    "moduleResolution": "bundler",
    "lib": ["ES2022", "DOM", "DOM.Iterable"],
    "types": ["node"],
}

STRICT_COMPILER = {
    "strict": True,
    "noEmit": True,
    "target": "ES2022",
    "module": "esnext",
    "moduleResolution": "bundler",
    "jsx": "react-jsx",
    "skipLibCheck": True,
    "lib": ["ES2022", "DOM", "DOM.Iterable"],
    "types": [],
}
PAGES = (ROOT / "docs" / "how-to" / "use-the-typescript-sdk.md", SDK / "README.md")
ASSUMED = """
declare const registryUrl: string;
declare const trustedKeys: readonly string[];
declare const storage: import("@svc/client").BundleStorage;
declare const session: import("@svc/client").LiveSession;
declare const recorder: { onSamples: (samples: Float32Array) => void };
declare const otherRecorder: { onBase64: (text: string) => void };
declare function fetchEphemeralKey(): Promise<string>;
declare function render(text: string): void;
declare module "@noble/curves/ed25519" {
  export const ed25519: { verify(signature: Uint8Array, message: Uint8Array, publicKey: Uint8Array): boolean };
}
"""
"""Declarations that the snippets leave to the reader."""


def copy_examples(project: Path) -> Path:
    """Copy the programs for Node and browsers to a project that has `@svc/client`. Return their folder.

    The script of a page becomes a module of its own.
    """
    sources = project / "examples"
    sources.mkdir()
    for path in EXAMPLES.glob("*.mjs"):
        shutil.copyfile(path, sources / path.name)
    for path in EXAMPLES.glob("*.html"):
        (script,) = re.findall(r'<script type="module">(.*?)</script>', path.read_text(encoding="utf-8"), flags=re.S)
        (sources / f"{path.stem}.mjs").write_text(script.replace("./client/index.js", "@svc/client"), encoding="utf-8")
    link_packages(project, "@types", "undici-types")
    return sources


def link_packages(project: Path, *names: str) -> None:
    """Give a project packages that the SDK has, unless it has them already."""
    for name in names:
        link = project / "node_modules" / name
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(SDK / "node_modules" / name)


def check_types(sources: Path, environment: Mapping[str, str], exclude: Sequence[str] = ()) -> None:
    """Check the types of the programs in a folder. Raises CalledProcessError."""
    config = {"compilerOptions": COMPILER, "include": ["*.mjs"], "exclude": list(exclude)}
    (sources / "tsconfig.json").write_text(json.dumps(config))
    subprocess.run([str(TOOLS / "tsc"), "-p", "."], cwd=sources, env=environment, check=True)


def check_snippets(project: Path, environment: Mapping[str, str]) -> None:
    """Check the types of the snippets on PAGES in a project that has `@svc/client` and React."""
    folder = project / "snippets"
    folder.mkdir()
    (folder / "assumed.d.ts").write_text(ASSUMED)
    for page in PAGES:
        found = re.findall(r"^```(tsx?)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        assert found, f"{page} has no snippets"
        for number, (language, text) in enumerate(found, 1):
            (folder / f"{page.stem}-{number}.{language}").write_text(text, encoding="utf-8")
    config = {"compilerOptions": STRICT_COMPILER, "include": ["*"]}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    subprocess.run([str(TOOLS / "tsc"), "-p", "."], cwd=folder, env=environment, check=True)


def bundle_all(sources: Path, target: Path, environment: Mapping[str, str], external: Sequence[str] = ()) -> None:
    """Bundle each program in a folder, for Node or for browsers."""
    for path in sorted(sources.glob("*.mjs")):
        platform = "node" if '"node:' in path.read_text(encoding="utf-8") else "browser"
        bundle(path, target / path.name, environment, platform, external)


def bundle(
    source: Path, target: Path, environment: Mapping[str, str], platform: str, external: Sequence[str] = ()
) -> None:
    """Bundle a program with all that it imports. Raises AssertionError if a package is missing."""
    options = ["--format", "esm", "--platform", platform, "--file", str(target)]
    for name in external:
        options += ["--external", name]
    completed = subprocess.run(
        [str(TOOLS / "rolldown"), str(source), *options],
        cwd=source.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    output = completed.stdout + completed.stderr
    assert completed.returncode == 0, f"{source.name} cannot be bundled:\n{output}"
    assert "UNRESOLVED" not in output, f"{source.name} imports a package that is missing:\n{output}"


def bundle_without_phone_packages(project: Path, environment: Mapping[str, str]) -> None:
    """Check and bundle all examples, and the guide's snippets, with nothing but the packages of the SDK's lock.

    The Expo app keeps its imports of Expo and React Native, and the program for ONNX models that of its runtime.
    """
    link_packages(project, "react", "@types", "csstype")
    (project / "node_modules" / "@svc").mkdir()
    (project / "node_modules" / "@svc" / "client").symlink_to(SDK)
    sources = copy_examples(project)
    check_types(sources, environment, exclude=["onnx.mjs"])
    check_snippets(project, environment)
    bundle_all(sources, project / "bundled", environment, [ONNX_PACKAGE])
    app = project / "expo-chat"
    app.mkdir()
    for path in EXAMPLES.glob("expo-chat/*.ts*"):
        shutil.copyfile(path, app / path.name)
    bundle(app / "index.ts", project / "bundled" / "app.js", environment, "browser", PHONE_PACKAGES)
