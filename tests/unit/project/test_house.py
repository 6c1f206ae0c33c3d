"""The rules of the house: one import root, and who may import whom.

CONTRIBUTING.md draws the map. This test holds the directions between rooms, not every edge.
"""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

from support.checkout import ROOT

#: The folders at the top that `credhook/` holds a link to.
LINKED = ("receiver", "worker", "sandbox")
LINKED_NAMES = tuple(f"credhook.{room}" for room in LINKED)


def modules() -> dict[str, Path]:
    """Every module of ours, by the name that it is imported by."""
    found = {}
    for top in ("credhook", *LINKED):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(("credhook", *parts) if top in LINKED else parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


@functools.cache
def imports(path: Path) -> set[str]:
    """The modules that the file imports, wherever in it, and those in the table of commands."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            named = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in MODULES else str(node.module) for name in named}
        elif path == MODULES["credhook.cli"] and isinstance(node, ast.Constant):  # Its table of commands.
            found |= {str(node.value)} & MODULES.keys() - {"credhook"}
    return found


@functools.cache
def graph() -> dict[str, set[str]]:
    """Who imports whom; made by the first test that asks, not by whoever collects them."""
    ours = {"credhook", *LINKED}
    return {name: {one for one in imports(path) if one.split(".")[0] in ours} for name, path in MODULES.items()}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in map(ROOT.joinpath, listed.splitlines()) if path.is_file()]


def test_nothing_of_ours_is_imported_by_another_name_than_credhooks() -> None:
    assert {target.split(".")[0] for targets in graph().values() for target in targets} == {"credhook"}
    assert {target for targets in graph().values() for target in targets} <= set(MODULES)


def test_no_module_imports_itself_on_a_detour() -> None:
    TopologicalSorter(graph()).prepare()  # The error names the modules of a circle.


def test_the_three_never_know_each_other() -> None:
    tops = {name: path.relative_to(ROOT).parts[0] for name, path in MODULES.items()}
    edges = [(name, target) for name, targets in graph().items() for target in targets if not name.endswith("__main__")]
    rooms = {(tops[name], tops[target]) for name, target in edges}
    assert not rooms & {(one, other) for one in LINKED for other in LINKED if one != other}
    assert ("sandbox", "credhook") not in rooms


def test_store_imports_neither_worker_nor_click() -> None:
    """The store is a library: commands, console and checks use it alike."""
    of_store = {target for name, targets in graph().items() if ".store" in name for target in targets}
    assert not [target for target in of_store if target.startswith(LINKED_NAMES)]
    assert not [name for name, path in MODULES.items() if ".store" in name and "click" in packages(path)]


def packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def test_the_store_alone_knows_redis_and_the_sandbox_not_even_rq() -> None:
    """The sandbox plays the platform, which reaches us by HTTP alone."""
    assert [name for name, path in MODULES.items() if "redis" in packages(path) and ".store." not in name] == []
    assert [name for name, path in MODULES.items() if "rq" in packages(path) and ".sandbox" in name] == []


def test_every_package_that_is_imported_is_declared() -> None:
    """An environment that is older than a change still holds what is no dependency any more."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = chain.from_iterable(project["optional-dependencies"].values())
    listed = [*project["dependencies"], *extras, "pydantic-core"]
    declared = {re.split(r"[^\w.-]", one, maxsplit=1)[0].lower().replace("_", "-") for one in listed}
    imported = {package for path in MODULES.values() for package in packages(path)}
    brought = packages_distributions()
    found = {one: {name.lower().replace("_", "-") for name in brought.get(one, ())} for one in imported}
    others = found.keys() - {*sys.stdlib_module_names, "credhook"}
    assert [one for one in others if not found[one] & declared] == []


def test_nothing_else_stands_at_the_top() -> None:
    visible = {top for top in (path.relative_to(ROOT).parts[0] for path in tracked()) if top[0] != "."}
    allowed = {*LINKED, "credhook", "tests", "deploy", "pyproject.toml", "Procfile", "Makefile"}
    assert visible <= allowed | {"README.md", "CONTRIBUTING.md", "LICENSE", "CHANGELOG.md", "dist"}
