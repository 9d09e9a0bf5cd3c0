"""Upgrade the schema of the database, as each gateway does when it starts. Repeating it changes nothing.

Run it before the gateways of a new version, for example in a Kubernetes Job. Several processes wait for each other.

--to N lets a program start that knows schema version N and is from before version 8. Later programs start with a newer
schema anyway, if it works with them. Nothing is undone, so newer gateways continue to work beside the older ones.
svc migrate without --to ends this.

--sums completes the sums of entries that older gateways stored after the upgrade. Gateways do this for hours that are
over. It also counts errors of entries from before schema version 6.

--partition divides the entries in PostgreSQL by month. A month is then dropped as a whole once all its entries are
older than [ledger] retain_days, so entries are kept up to 31 days longer. Older gateways work with it.

The exit status is 0 if the schema is up to date, and 1 if the database is unavailable. It is 2 if this program cannot
use a newer schema, or if programs of version N cannot use this one.

Examples:
  svc migrate
  SVC_DATABASE_URL=postgresql://svc@db.example/svc svc migrate --json
  svc migrate --to 7
  svc migrate --sums
  SVC_DATABASE_URL=postgresql://svc@db.example/svc svc migrate --partition
"""

from __future__ import annotations

import argparse
import os
from typing import Final

from svc.cli._folders import find_home
from svc.cli._output import print_json
from svc.stores.database.factory import database_url, open_database
from svc.stores.database.migrations import latest_schema_version

MIGRATION_TIMEOUT_SECONDS: Final = 600.0
"""Maximum time of a statement. Another process may hold the lock, and a change of a large table takes a while."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--to", type=int, metavar="N", help="let older programs start that know schema version N")
    parser.add_argument("--sums", action="store_true", help="complete the sums of entries that older gateways stored")
    parser.add_argument("--partition", action="store_true", help="divide the entries in PostgreSQL by month")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Upgrade the schema."""
    database = open_database(database_url(os.environ, find_home()), MIGRATION_TIMEOUT_SECONDS)
    try:
        old_version, version = database.record_schema_version(args.to)
        is_partitioned = args.partition and database.partition_entries()
        repaired = sum(database.repair_sums()) if args.sums else 0
    finally:
        database.close()
    if args.json:
        result: dict[str, object] = {"from": old_version, "to": version}
        result |= {"repaired_entries": repaired} if args.sums else {}
        print_json(result | ({"partitioned": is_partitioned} if args.partition else {}))
        return 0
    print(_describe(args.to, old_version, version))
    if args.partition:
        print("The entries are partitioned by month" + ("" if is_partitioned else " already"))
    if args.sums:
        print(f"The sums of {repaired} entries are completed")
    return 0


def _describe(requested: int | None, old_version: int, version: int) -> str:
    latest = latest_schema_version()
    if requested is not None and version < latest:
        return (
            f"Programs of schema version {version} can start now. Gateways of version {latest} continue to work. "
            "To end this after the next upgrade: svc migrate"
        )
    if old_version == version:
        return f"The database schema has version {version} already"
    return f"The database schema is upgraded from version {old_version} to {version}"
