"""The house: the order of its rooms, what they may import of each other, and no module hidden by a function."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from coset._rooms import APART, INFRASTRUCTURE, ROOMS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "coset"
ORDER = ("_rooms", *INFRASTRUCTURE, *ROOMS)


@dataclass(frozen=True)
class Import:
    """``name`` of the module ``target`` is imported by ``module``; ``typing``: only where types are checked."""

    module: str
    target: str
    name: str
    typing: bool


def _modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = _modules()


Found = tuple[ast.Import | ast.ImportFrom, bool]
"""An import, and whether it stands where only types are checked."""


@cache
def _statements() -> dict[str, tuple[Found, ...]]:
    """The imports of every module: found by the first test that asks, since every process that tests has this file.

    Trees are not kept: they are millions of objects, which every search for garbage would go through.
    """
    return {name: tuple(_imports_in(ast.parse(path.read_text()).body)) for name, path in MODULES.items()}


def _imports_in(body: Iterable[ast.AST], typing: bool = False) -> Iterator[Found]:
    """The imports among statements, and among those inside of these: an expression has none."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, typing
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, ())
            if isinstance(inner, list):
                checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
                yield from _imports_in(inner, typing or checked)


@cache
def _imports() -> tuple[Import, ...]:
    return tuple(_read_imports())


def _read_imports() -> Iterator[Import]:
    for module, statements in _statements().items():
        for node, typing in statements:
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "coset":
                assert node.module is not None
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    target = whole if whole in MODULES and not _is_package_name(whole) else node.module
                    yield Import(module, target, alias.name, typing)


def _is_package_name(whole: str) -> bool:
    """Whether a package makes something else of the name of one of its modules."""
    package, _, name = whole.rpartition(".")
    return name in _names(package)


@cache
def _names(package: str) -> set[str]:
    """What a package imports; nothing that is only there for types or inside of functions."""
    top = ast.parse(MODULES[package].read_text()).body
    return {alias.asname or alias.name for node in top if isinstance(node, ast.ImportFrom) for alias in node.names}


STUDIES = sorted((SOURCE.parent / "coset_studies").rglob("*.py"))


def _imported_names(statements: Iterable[Found]) -> Iterator[str]:
    """Every module, and every name of one, that is imported, with dots."""
    for node, _ in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def _room(module: str) -> str:
    return [*module.split("."), ""][1]


def _across() -> list[Import]:
    return [item for item in _imports() if _room(item.module) and _room(item.target) not in ("", _room(item.module))]


def test_every_module_is_in_a_room():
    assert {_room(module) for module in MODULES} - {""} == set(ORDER)


def test_rooms_import_only_from_rooms_before_them():
    wrong = [
        f"{item.module} imports {item.target}"
        for item in _across()
        if not item.typing
        if ORDER.index(_room(item.target)) > ORDER.index(_room(item.module))
        or {_room(item.target), _room(item.module)} <= APART
    ]
    assert not wrong


def test_rooms_import_only_public_names_of_each_other():
    wrong = [
        f"{item.module} imports {item.name} of {item.target}"
        for item in _across()
        if any(part.startswith("_") for part in (*item.target.split(".")[2:], item.name))
    ]
    assert not wrong


def test_no_module_is_hidden_by_what_its_package_exports():
    hidden = [name for name in MODULES if "." in name and _is_package_name(name)]
    assert not hidden


def test_no_cycles_inside_rooms():
    """Imports inside of functions count; those for types alone do not."""
    after: dict[str, set[str]] = {module: set() for module in MODULES}
    for item in _imports():
        inside = _room(item.module) == _room(item.target) and not item.module.startswith(f"{item.target}.")
        if inside and not item.typing and item.module != item.target:
            after[item.module].add(item.target)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"{' → '.join((*path[path.index(module) :], module))} is a cycle"
        if module not in done:
            for other in sorted(after[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


def test_rooms_are_attributes_of_coset():
    checks = "; ".join(f"assert coset.{room}.__name__ == 'coset.{room}'" for room in ROOMS)
    subprocess.run([sys.executable, "-c", f"import coset; {checks}"], check=True)


def test_public_names_are_there():
    for module, path in MODULES.items():
        if path.name == "__init__.py" and module != "coset" and "studies" not in module:
            package = importlib.import_module(module)
            for name in getattr(package, "__all__", ()):
                assert hasattr(package, name), f"{module}.__all__ names {name}"


def test_contributing_lists_the_rooms():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("| room in `src/coset/` |") : text.index("## Every day")]
    named = [
        word.rstrip("/")
        for row in table.splitlines()[2:]
        for word in re.findall(r"`(\w+)/?`", row.split("|")[1] if "|" in row else "")
    ]
    assert [name for name in named if name in ROOMS] == list(ROOMS)


def test_studies_import_only_public_names():
    assert STUDIES
    wrong = [
        f"{path.name} imports {name}"
        for path in STUDIES
        for name in _imported_names(_imports_in(ast.parse(path.read_text()).body))
        if name.partition(".")[0] == "coset" and any(part.startswith("_") for part in name.split("."))
    ]
    assert not wrong


def test_names_that_studies_import_are_exported():
    for path in STUDIES:
        for node, _ in _imports_in(ast.parse(path.read_text()).body):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "coset":
                module = importlib.import_module(node.module)
                exported = getattr(module, "__all__", None)
                for alias in node.names:
                    assert exported is None or alias.name in exported, f"{path.name}: {node.module}.{alias.name}"


def test_the_library_does_not_import_its_studies():
    wrong = [
        f"{module} imports {name}"
        for module, statements in _statements().items()
        for name in _imported_names(statements)
        if name.partition(".")[0] == "coset_studies"
    ]
    assert not wrong


def test_the_architecture_page_names_files_that_are_there():
    text = (ROOT / "docs" / "architecture.md").read_text()
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py")]
    missing = [
        name
        for name in re.findall(r"`([\w/]+\.py)`", text)
        if not (ROOT / name).is_file() and not any(path.endswith(f"/{name}") for path in files)
    ]
    assert not missing
    drawing = text[text.index("```text") : text.index("## The walk")]
    assert not [room for room in (*ROOMS, *INFRASTRUCTURE) if room not in drawing]
