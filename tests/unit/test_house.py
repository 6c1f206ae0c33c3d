"""The rules of the house: who may import whom, and what the job's name points to."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from receiver.ledger import JOB_FUNCTION

ROOT = Path(__file__).parents[2]
ROOMS = ("receiver", "worker", "sandbox")


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
    }


def imports(name: str, path: Path) -> Iterator[str]:
    """Our own modules that the file imports, wherever in it."""
    ours = modules()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - node.level + 1], *filter(None, [base])]
                )
            targets = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in ours else base for alias in node.names]
        else:
            continue
        yield from (target for target in targets if target.split(".")[0] in ROOMS)


GRAPH = {name: set(imports(name, path)) for name, path in modules().items()}


def room(name: str) -> str:
    return name.split(".", maxsplit=1)[0]


def test_the_graph_is_seen_at_all() -> None:
    assert "receiver.ledger" in GRAPH["worker.claims"]
    assert len(GRAPH) > 20


def test_the_receiver_imports_nothing_of_the_others() -> None:
    assert {target for name in GRAPH if room(name) == "receiver" for target in GRAPH[name]} <= {
        name for name in GRAPH if room(name) == "receiver"
    }


def test_the_worker_imports_only_the_vocabulary_and_the_ledger_of_the_receiver() -> None:
    foreign = {t for name in GRAPH if room(name) == "worker" for t in GRAPH[name] if room(t) != "worker"}
    assert {".".join(target.split(".")[:2]) for target in foreign} == {"receiver.events", "receiver.ledger"}


def test_the_sandbox_imports_neither() -> None:
    assert {room(t) for name in GRAPH if room(name) == "sandbox" for t in GRAPH[name]} == {"sandbox"}


def test_there_is_no_import_cycle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in GRAPH.get(name, ()):
                visit(target, (*path, name))
            done.add(name)

    for name in GRAPH:
        visit(name, ())


def test_the_name_in_the_job_is_the_workers_function() -> None:
    module, _, function = JOB_FUNCTION.rpartition(".")
    tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}


@pytest.mark.parametrize("name", ["utils", "helpers", "common", "manager"])
def test_no_file_is_named_for_nothing_in_particular(name: str) -> None:
    assert not [path for path in ROOT.glob(f"[!.]*/**/*{name}*.py") if ".venv" not in path.parts]


def test_nothing_else_stands_at_the_top() -> None:
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    visible = {name.split("/")[0] for name in files if name[0] != "."}
    allowed = {*ROOMS, "credhook.py", "tests", "deploy", "pyproject.toml", "Procfile", "Makefile"}
    assert visible <= allowed | {"README.md", "LICENSE", "CHANGELOG.md", "dist"}
