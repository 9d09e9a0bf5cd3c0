"""Create a bundle (.xyb) from a model folder, or inspect one.

Examples:
  svc bundle pack ./my-model
  svc bundle pack ./my-model -o my-model.xyb
  svc bundle inspect my-model.xyb --json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from svc.bundles.archive import read_metadata
from svc.bundles.digest import sha256_file
from svc.bundles.open_archive import open_archive
from svc.bundles.pack import pack, read_folder_metadata
from svc.cli._output import print_json, print_table
from svc.cli._progress_bar import ProgressBar
from svc.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions pack and inspect."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    pack_parser = verbs.add_parser("pack", help="create a bundle from a folder", allow_abbrev=False)
    pack_parser.add_argument("folder", metavar="DIR", type=Path, help="a folder with a model_metadata.json")
    pack_parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: <model_id>.xyb in this folder")
    pack_parser.add_argument("--json", action="store_true", help="print JSON")
    inspect_parser = verbs.add_parser("inspect", help="show the contents of a bundle", allow_abbrev=False)
    inspect_parser.add_argument("file", metavar="FILE", type=Path, help="a bundle file (.xyb)")
    inspect_parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    return _run_pack(args) if args.action == "pack" else _run_inspect(args)


def _run_pack(args: argparse.Namespace) -> int:
    folder: Path = args.folder
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder.")
    output: Path = args.output or Path.cwd() / f"{read_folder_metadata(folder).model_id}.xyb"
    if output.is_dir() or not output.parent.is_dir():
        raise UsageError(f"{output} is a folder." if output.is_dir() else f"There is no folder {output.parent}.")
    with ProgressBar() as progress:
        metadata = pack(folder, output, lambda done, total: progress(f"packing {folder.name}", done, total))
    digest, size = sha256_file(output), output.stat().st_size
    if args.json:
        print_json(
            {
                "path": str(output),
                "model_id": metadata.model_id,
                "version": metadata.version,
                "size_bytes": size,
                "sha256": digest,
            }
        )
    else:
        print(f"{output}  {metadata.model_id}@{metadata.version}  {size} bytes  sha256:{digest}")
    return 0


def _run_inspect(args: argparse.Namespace) -> int:
    path: Path = args.file
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    with open_archive(path) as archive:
        metadata, files, kind = read_metadata(archive), dict(archive.file_sizes), archive.kind
    size, digest = path.stat().st_size, sha256_file(path)
    if args.json:
        print_json(
            {
                "format": kind,
                "size_bytes": size,
                "sha256": digest,
                "metadata": msgspec.to_builtins(metadata),
                "files": [{"path": name, "size_bytes": length} for name, length in sorted(files.items())],
            }
        )
        return 0
    print(f"{metadata.model_id}@{metadata.version}  {metadata.type}  {kind}  {size} bytes  sha256:{digest}")
    if metadata.description:
        print(metadata.description)
    print_table([("SIZE", "FILE"), *((str(length), name) for name, length in sorted(files.items()))])
    return 0
