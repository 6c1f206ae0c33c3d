"""Which handlers `credhook dev` takes, in which order, and what of theirs it watches."""

from pathlib import Path

import click
import pytest

from credhook.sandbox.local.dev import choose, folders
from credhook.sandbox.local.environment import CannotStart

PROJECT = '[project.entry-points."credhook.handlers"]\naccounts = "accounts:handlers"\n'


def test_each_is_named_by_the_first_that_names_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose((), {}, tmp_path) == ((), "")
    (tmp_path / "offering-1.dist-info").mkdir()
    (tmp_path / "offering-1.dist-info" / "entry_points.txt").write_text("[credhook.handlers]\nmine = offering:mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert choose((), {}, tmp_path) == (("offering:mine",), "an installed package")
    (tmp_path / "handlers.py").touch()
    assert choose((), {}, tmp_path) == (("handlers",), "handlers.py")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert choose((), {}, tmp_path) == (("accounts:handlers",), "pyproject.toml")
    environ = {"CREDHOOK_HANDLERS": "mine, yours:both"}
    assert choose((), environ, tmp_path) == (("mine", "yours:both"), "CREDHOOK_HANDLERS")
    assert choose(("a.b",), environ, tmp_path) == (("a.b",), "the command line")


def test_dev_passes_over_projects_without_handlers(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert choose((), {}, tmp_path) == ((), "")
    (tmp_path / "pyproject.toml").write_text("[project")
    (tmp_path / "folder" / "pyproject.toml").mkdir(parents=True)
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "pyproject.toml").write_text("project = []")
    for unreadable in (tmp_path, tmp_path / "folder", tmp_path / "list"):
        with pytest.raises(CannotStart, match=r"^pyproject\.toml cannot be read"):
            choose((), {}, unreadable)


@pytest.mark.parametrize("name", ["accounts.py", "src/accounts.py", "a-b"])
def test_a_file_is_no_module(tmp_path: Path, name: str) -> None:
    with pytest.raises(click.BadParameter, match="name it as in an import"):
        choose((name,), {}, tmp_path)


def test_the_folder_is_watched_and_packages_that_are_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    (here / "own").mkdir(parents=True)
    (elsewhere / "package").mkdir(parents=True)
    (elsewhere / "package" / "__init__.py").touch()
    (elsewhere / "single.py").touch()
    monkeypatch.syspath_prepend(elsewhere)
    names = ("own", "package.inner:handlers", "package", "single", "not_there_yet")
    assert folders(names, here) == [here, elsewhere / "package", elsewhere / "single.py"]
    assert folders((), here) == []
