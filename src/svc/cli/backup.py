"""Back up keys, ledger and configuration of a machine to one file, while its gateway runs.

The database must be SQLite. The file contains hashes of keys and the keys in SVC_HOME: protect it like SVC_HOME.

Examples:
  svc backup svc-backup.tar
  svc backup --bundles svc-backup.tar
  svc restore svc-backup.tar
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from svc.app import backup
from svc.cli._folders import find_home, find_registry_root
from svc.cli._output import print_json
from svc.cli._progress_bar import ProgressBar
from svc.errors import UsageError
from svc.stores.bundles.factory import find_store_folder
from svc.stores.database.factory import database_url


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file and the options."""
    parser.add_argument("file", metavar="FILE", help="archive to create, a tar file")
    parser.add_argument("--bundles", action="store_true", help="include the bundles of the registry folder")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Create the archive."""
    home, target = find_home(), Path(args.file)
    database_path = find_sqlite_path(home, "pg_dump copies it, as docs/how-to/back-up-and-restore.md describes")
    registry_root = find_store_folder(find_registry_root(), os.environ) if args.bundles else None
    if args.bundles and registry_root is None:
        raise UsageError("--bundles copies a folder, but SVC_BLOB_URL names a bucket. Use its versioning.")
    with ProgressBar() as progress:
        manifest = backup.create_backup(
            home,
            database_path,
            target,
            registry_root=registry_root,
            overwrite=args.force,
            on_progress=progress,
            on_warning=_print_warning,
        )
    size = target.stat().st_size
    if args.json:
        print_json({"file": str(target), "size_bytes": size, **msgspec.to_builtins(manifest)})
    else:
        print(f"{target} contains {len(manifest.files)} files, {size / 1e6:.1f} MB")
    return 0


def _print_warning(message: str) -> None:
    print(f"svc: {message}", file=sys.stderr)


def find_sqlite_path(home: Path, hint: str) -> Path:
    """Return the path of the SQLite database. Raises UsageError with the hint for PostgreSQL."""
    url = database_url(os.environ, home)
    path = url.removeprefix("sqlite:///")
    if path == url or not path:
        raise UsageError(f"SVC_DATABASE_URL does not name a SQLite database. For PostgreSQL, {hint}.")
    return Path(path).expanduser()
