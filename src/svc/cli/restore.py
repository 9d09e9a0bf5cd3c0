"""Restore a file of `svc backup` into SVC_HOME. No gateway and no registry may run there.

The backup is checked completely first. The old state is kept in SVC_HOME/before-restore-….

Examples:
  svc restore svc-backup.tar
  SVC_HOME=/var/lib/svc-new svc restore svc-backup.tar
  svc restore --force svc-backup.tar
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from svc.app import restore
from svc.cli import _local_gateway
from svc.cli._folders import find_home
from svc.cli._output import print_json
from svc.cli._progress_bar import ProgressBar
from svc.cli.backup import find_sqlite_path
from svc.errors import CommandFailed, UsageError
from svc.gateway.accounting.ingest import has_journal_writers
from svc.stores.bundles.folder_use import hold_folder_replacement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file and the options."""
    parser.add_argument("file", metavar="FILE", help="archive of svc backup")
    parser.add_argument("--force", action="store_true", help="replace the state that SVC_HOME contains")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Check the archive, and replace the state."""
    home, archive = find_home(), Path(args.file)
    _check_target(home)
    if not archive.is_file():
        raise UsageError(f"There is no backup {archive}.")
    with _lock_home(home), ProgressBar() as progress:
        result = restore.restore_backup(archive, home, overwrite=args.force, on_progress=progress)
    if args.json:
        fields = msgspec.to_builtins(result.manifest)
        print_json({"home": str(home), "old_state": result.old_state, **fields})
        return 0
    print(f"{home} has the state of {result.manifest.created}, {len(result.manifest.files)} files")
    if result.old_state is not None:
        print(f"The old state is in {result.old_state}")
    return 0


def _check_target(home: Path) -> None:
    """Raise UsageError if the program would not use the restored database."""
    path = find_sqlite_path(home, "load the dump with pg_restore, as docs/how-to/back-up-and-restore.md describes")
    if path.absolute() != (home / "svc.db").absolute():
        raise UsageError(
            f"svc restore writes {home / 'svc.db'}, but SVC_DATABASE_URL names {path}. "
            "Unset it, or restore into another SVC_HOME and move svc.db there."
        )


@contextlib.contextmanager
def _lock_home(home: Path) -> Iterator[None]:
    """Keep gateways and registries out of the state folder. Raises CommandFailed or UsageError if one runs."""
    with _local_gateway.hold_up_lock(home), _local_gateway.hold_gateway_lock(home) as is_only_gateway:
        if not is_only_gateway or has_journal_writers(home / "journal"):
            raise CommandFailed(f"A gateway uses {home}. Stop it first, or set SVC_HOME to another folder.")
        with hold_folder_replacement(home):
            yield
