"""Rules for names, imports and pages. The layers are in `[tool.importlinter]` of pyproject.toml: `make lint`."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec

from svc import plugins
from svc.settings import FileSettings

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
PARALLEL_IMPLEMENTATIONS = (
    ("svc.dialects.openai", "svc.dialects.anthropic"),
    ("svc.speech.engines.sherpa_offline", "svc.speech.engines.sherpa_online", "svc.speech.engines.faster_whisper"),
)
"""Implementations of one interface, which share names. No other module repeats a name of another module."""


@cache
def parse_modules() -> dict[str, ast.Module]:
    """Return the syntax tree of each module, by name."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_bytes())
        for path in sorted((SOURCE / "svc").rglob("*.py"))
    }


def test_settings_every_field_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    for table in msgspec.structs.fields(FileSettings):
        if isinstance(values := getattr(FileSettings(), table.name), msgspec.Struct):
            for field in msgspec.structs.fields(values):
                assert f"`{field.encode_name}`" in page, f"[{table.name}] {field.encode_name}"


def test_settings_documented_example_is_valid(tmp_path: Path) -> None:
    from svc import settings

    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    first, *others = re.findall(r"```toml\n(.*?)```", page, flags=re.S)
    path = tmp_path / "svc.toml"
    path.write_text(first)
    assert settings.load({}, config=str(path)).providers[0].name == "vllm"
    for example in others:
        path.write_text(re.sub("^include = .*$", "", example, flags=re.M))
        settings.load(dict.fromkeys(re.findall(r"\$\{(\w+)\}", example), "value.example"), config=str(path))


def test_cli_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    for verb in plugins.names("cli"):
        assert f"`svc {verb}" in page, verb


def test_dependencies_every_package_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text().lower()
    text = (ROOT / "pyproject.toml").read_text()
    section = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    for name in re.findall(r'"([A-Za-z0-9_.-]+)', section):
        assert name.lower() in page, name


TEXT_FOLDERS = ("src", "tests", "bench", "native", "examples", "docs")
TEXT_SUFFIXES = frozenset({".py", ".md", ".txt", ".toml", ".yaml", ".yml", ".sql", ".lua", ".json"})
DOCUMENTS_ELSEWHERE = re.compile(
    r"§|\b(decisions|interface|wire-facts|moves|renames)\.md|\bdecisions,\s+sections?\b|\binterface,\s+\""
    r"|\(wire facts\)|\bbench's\s+notes|\.\./shared\b",
    re.IGNORECASE,
)


def test_files_references_point_into_the_repository() -> None:
    paths = [path for folder in TEXT_FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES]
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path in (*paths, *ROOT.glob("*.md"))
        if path != Path(__file__)
        for text in [path.read_text(encoding="utf-8")]
        for match in DOCUMENTS_ELSEWHERE.finditer(text)
    ]
    assert found == []


def _repeated_names(names_of: Callable[[ast.Module], Iterator[str]]) -> dict[str, list[str]]:
    """Return the names that several modules define, with those modules. Parallel implementations are exempt."""
    modules: dict[str, list[str]] = defaultdict(list)
    for module, tree in parse_modules().items():
        for name in names_of(tree):
            modules[name].append(module)
    return {name: found for name, found in modules.items() if len(found) > 1 and not _are_parallel(found)}


def _are_parallel(modules: list[str]) -> bool:
    for packages in PARALLEL_IMPLEMENTATIONS:
        owners = [package for module in modules for package in packages if f"{module}.".startswith(f"{package}.")]
        if len(owners) == len(set(owners)) == len(modules):
            return True
    return False


def _class_names(tree: ast.Module) -> Iterator[str]:
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _constant_names(tree: ast.Module) -> Iterator[str]:
    """Yield UPPER_CASE names of the module, except type variables, which each module must define itself."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if not (isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TypeVar(")):
            for name in (one for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)):
                if name.id.isupper():
                    yield name.id


def test_modules_class_names_are_unique() -> None:
    assert _repeated_names(_class_names) == {}


def test_modules_constant_names_are_unique() -> None:
    assert _repeated_names(_constant_names) == {}


def _imports(tree: ast.Module) -> set[str]:
    """Return the modules of svc that a module imports, including those under TYPE_CHECKING."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert not node.level, "imports are absolute"
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & parse_modules().keys()
            found |= submodules or {node.module}
    return found & parse_modules().keys()


def test_modules_imports_form_no_cycle() -> None:
    """Imports under TYPE_CHECKING count. The loop removes modules without imports or importers until none is left."""
    imports = {module: _imports(tree) - {module} for module, tree in parse_modules().items()}
    while True:
        imported = set().union(*imports.values())
        kept = {module: found & imports.keys() for module, found in imports.items() if found and module in imported}
        if kept == imports:
            break
        imports = kept
    assert imports == {}


def test_compiled_modules_have_no_nested_functions() -> None:
    """mypyc makes such a function a reference cycle, so that each request kept its memory until a collection.

    Lambdas and functions in coroutines are no cycles.
    """
    listed = (ROOT / "native" / "modules.txt").read_text().splitlines()
    names = {"svc." + line.removesuffix(".py").replace("/", ".") for line in listed if line.endswith(".py")}
    found = [
        f"{name}: {outer.name}.{inner.name}"
        for name, tree in parse_modules().items()
        if name in names or f"{name}.__init__" in names
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef)
        for inner in ast.walk(outer)
        if inner is not outer and isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert not found
