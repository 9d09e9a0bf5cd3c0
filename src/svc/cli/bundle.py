"""Makes a bundle (.xyb) of a model's folder, or looks into one.

Examples:
  svc bundle pack ./my-model
  svc bundle pack ./my-model -o my-model.xyb
  svc bundle inspect my-model.xyb --json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from svc.bundles.archive import metadata_of
from svc.bundles.digest import sha256_of
from svc.bundles.opening import open_archive
from svc.bundles.pack import about_of, pack
from svc.cli import base
from svc.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """pack, inspect."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    packing = verbs.add_parser("pack", help="make a bundle of a folder", allow_abbrev=False)
    packing.add_argument("folder", metavar="DIR", type=Path)
    packing.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: <model_id>.xyb in this folder")
    packing.add_argument("--json", action="store_true", help="for programs")
    inspecting = verbs.add_parser("inspect", help="what is in a bundle", allow_abbrev=False)
    inspecting.add_argument("file", metavar="FILE", type=Path)
    inspecting.add_argument("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    """Runs the action."""
    return _pack(args) if args.action == "pack" else _inspect(args)


def _pack(args: argparse.Namespace) -> int:
    folder: Path = args.folder
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.")
    output: Path = args.output or Path.cwd() / f"{about_of(folder).model_id}.xyb"
    if output.is_dir() or not output.parent.is_dir():
        raise UsageError(f"{output} is a folder." if output.is_dir() else f"There is no folder {output.parent}.")
    with base.Progress() as progress:
        about = pack(folder, output, lambda done, total: progress(f"packing {folder.name}", done, total))
    digest, size = sha256_of(output), output.stat().st_size
    if args.json:
        base.print_json(
            {
                "path": str(output),
                "model_id": about.model_id,
                "version": about.version,
                "size_bytes": size,
                "sha256": digest,
            }
        )
    else:
        print(f"{output}  {about.model_id}@{about.version}  {size} bytes  sha256:{digest}")
    return 0


def _inspect(args: argparse.Namespace) -> int:
    path: Path = args.file
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    with open_archive(path) as archive:
        about, files, kind = metadata_of(archive), dict(archive.files), archive.kind
    size, digest = path.stat().st_size, sha256_of(path)
    if args.json:
        base.print_json(
            {
                "format": kind,
                "size_bytes": size,
                "sha256": digest,
                "metadata": msgspec.to_builtins(about),
                "files": [{"path": name, "size_bytes": length} for name, length in sorted(files.items())],
            }
        )
        return 0
    print(f"{about.model_id}@{about.version}  {about.type}  {kind}  {size} bytes  sha256:{digest}")
    if about.description:
        print(about.description)
    base.print_table([("SIZE", "FILE"), *((str(length), name) for name, length in sorted(files.items()))])
    return 0
