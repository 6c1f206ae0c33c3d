"""`make` with an environment that exists already. pip only writes down its arguments, and uv finds no index."""

import os
import shutil
import sys
import venv
from pathlib import Path

import pytest
import release

ROOT = Path(__file__).parents[2]
VERSION = "{}.{}".format(*sys.version_info)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")

PIP = """
import pathlib, sys
with pathlib.Path("told").open("a") as told:
    print(*sys.argv[1:], file=told)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of one as `make` looks at."""
    (tmp_path / "deploy").mkdir()
    for name in ("Makefile", "pyproject.toml", "deploy/requirements-dev.txt", "deploy/requirements-uv.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(checkout: Path, python: str = sys.executable) -> str:
    """Install what is to be installed; what `make` says."""
    return release.run("make", f".venv/.installed-{VERSION}", f"PYTHON={python}", folder=checkout)


def test_a_changed_project_is_installed_again_and_what_the_user_has_installed_stays(checkout: Path) -> None:
    venv.create(checkout / ".venv")
    packages = checkout / ".venv" / "lib" / f"python{VERSION}" / "site-packages"
    (packages / "pip").mkdir()
    (packages / "pip" / "__init__.py").touch()
    (packages / "pip" / "__main__.py").write_text(PIP)
    (packages / "ours_beside.py").touch()
    stamp = checkout / ".venv" / f".installed-{VERSION}"
    stamp.touch()
    os.utime(stamp, (0, 0))  # Older than pyproject.toml.
    assert "stays" in make(checkout)
    assert (packages / "ours_beside.py").exists()
    installer, requirements, project = (checkout / "told").read_text().splitlines()
    assert "--require-hashes -r deploy/requirements-uv.txt" in installer
    assert "--require-hashes -r deploy/requirements-dev.txt" in requirements
    assert project.endswith("--editable .")
    assert "up to date" in make(checkout)
    assert len((checkout / "told").read_text().splitlines()) == 3


@pytest.mark.parametrize("found", ["3.9", "broken"])
def test_another_python_makes_the_environment_anew_and_says_what_that_costs(checkout: Path, found: str) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").write_text(f"#!/bin/sh\necho {found}\n" if found != "broken" else "")
    (checkout / ".venv" / "bin" / "python").chmod(0o755 if found != "broken" else 0o644)
    python = checkout / "python"
    python.write_text(
        f"""#!/bin/sh
case "$*" in
"-m venv"*) echo "$*" > venv-was-told; rm .venv/bin/python; ln -s "$0" .venv/bin/python ;;
"-m uv"*) exit 1 ;;
"-m pip"*) echo "$*" >> told ;;
*) exec {sys.executable} "$@" ;;
esac
"""
    )
    python.chmod(0o755)
    said = make(checkout, str(python))
    assert f"anew for Python {VERSION}, it was {found}" in said
    assert "gone" in said
    assert (checkout / "venv-was-told").read_text() == "-m venv --clear .venv\n"
    assert len((checkout / "told").read_text().splitlines()) == 3
