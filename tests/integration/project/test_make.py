"""`make` with a Python whose pip and venv only write down their arguments, and whose uv finds no index."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from support.checkout import ROOT
from support.project import release

VERSION = "{}.{}".format(*sys.version_info)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")

#: Its pip, and that of an environment, are files beside it.
PYTHON = f"""#!/bin/sh
case "$*" in
"-c import pip") exec test -e "$(dirname "$0")/pip" ;;
"-m ensurepip") touch "$(dirname "$0")/pip" ;;
"-m uv"*) exit 1 ;;
"-m "*) echo "$*" >> told; mkdir -p .venv/bin; ln -sf "{{}}" .venv/bin/python ;;
*) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of one as `make` looks at, and the Python."""
    (tmp_path / "deploy").mkdir()
    for name in ("Makefile", "pyproject.toml", "deploy/requirements-dev.txt", "deploy/requirements-uv.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "python").write_text(PYTHON.format(tmp_path / "python"))
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "pip").touch()
    return tmp_path


def make(checkout: Path) -> str:
    """Install what is to be installed; what `make` says."""
    return release.run("make", f".venv/.installed-{VERSION}", f"PYTHON={checkout / 'python'}", folder=checkout)


def told(checkout: Path) -> list[str]:
    return (checkout / "told").read_text().splitlines()


def test_a_changed_project_is_installed_again_and_what_the_user_has_installed_stays(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(checkout / "python")
    (checkout / ".venv" / "ours_beside.py").touch()
    stamp = checkout / ".venv" / f".installed-{VERSION}"
    stamp.touch()
    os.utime(stamp, (0, 0))  # Older than pyproject.toml.
    assert "stays" in make(checkout)
    assert (checkout / ".venv" / "ours_beside.py").exists()
    installer, requirements, project = told(checkout)
    assert "--require-hashes -r deploy/requirements-uv.txt" in installer
    assert "--require-hashes -r deploy/requirements-dev.txt" in requirements
    assert project.endswith("--editable .")
    assert "up to date" in make(checkout)
    assert len(told(checkout)) == 3


@pytest.mark.parametrize("found", ["3.9", "broken"])
def test_another_python_makes_the_environment_anew_and_says_what_that_costs(checkout: Path, found: str) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").write_text(f"#!/bin/sh\necho {found}\n" if found != "broken" else "")
    (checkout / ".venv" / "bin" / "python").chmod(0o755 if found != "broken" else 0o644)
    said = make(checkout)
    assert f"anew for Python {VERSION}, it was {found}" in said
    assert "gone" in said
    assert told(checkout)[0] == "-m venv --without-pip --clear .venv"
    assert len(told(checkout)) == 4


@pytest.mark.parametrize(("has_pip", "pip"), [(True, "--python .venv/bin/python install"), (False, "install")])
def test_a_python_without_pip_gives_the_environment_one(checkout: Path, has_pip: bool, pip: str) -> None:
    if not has_pip:
        (checkout / "pip").unlink()
    assert "(once)" in make(checkout)
    venv, *installed = told(checkout)
    assert venv == "-m venv --without-pip .venv"
    assert [one.startswith(f"-m pip {pip} --quiet") for one in installed] == [True] * 3
    assert (checkout / ".venv" / "bin" / "pip").exists() is not has_pip
