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

LOCK = "deploy/requirements-dev.txt"

#: It has a pip if there is a file of that name beside it. Its venv with a pip has one in the same way.
PYTHON = f"""#!/bin/sh
here=$(dirname "$0")
case "$*" in
"-m pip --version") exec test -e "$here/pip" ;;
"-m uv"*) exit 1 ;;
"-m "*) echo "$*" >> told; mkdir -p .venv/bin; ln -sf "{{}}" .venv/bin/python
    case "$*" in *"-r /dev/stdin") cat > told-uv ;; esac ;;
*) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of one as `make` looks at, and the Python."""
    (tmp_path / "deploy").mkdir()
    for name in ("Makefile", "pyproject.toml", LOCK):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "python").write_text(PYTHON.format(tmp_path / "python"))
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "pip").touch()
    return tmp_path


def make(checkout: Path) -> str:
    """Install what is to be installed; what `make` says."""
    return release.run("make", f".venv/.dev-{VERSION}", f"PYTHON={checkout / 'python'}", folder=checkout)


def told(checkout: Path) -> list[str]:
    return (checkout / "told").read_text().splitlines()


def test_a_changed_project_is_installed_again_and_other_packages_stay(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").symlink_to(checkout / "python")
    stamp = checkout / ".venv" / f".dev-{VERSION}"
    stamp.touch()
    os.utime(stamp, (0, 0))  # Older than pyproject.toml.
    assert f"installing {LOCK} into .venv" in make(checkout)
    installer, requirements, project = told(checkout)
    assert "--require-hashes -r /dev/stdin" in installer
    assert f"--require-hashes -r {LOCK}" in requirements
    assert project.endswith("--editable .")
    assert "up to date" in make(checkout)
    assert len(told(checkout)) == 3


def test_uv_is_installed_alone_by_its_hashes(checkout: Path) -> None:
    make(checkout)
    first, *hashes = (checkout / "told-uv").read_text().splitlines()
    assert first.startswith("uv==")
    assert len(hashes) > 10
    assert all(line.lstrip().startswith("--hash=sha256:") for line in hashes)


@pytest.mark.parametrize("found", ["3.9", "broken"])
def test_another_python_makes_the_environment_anew(checkout: Path, found: str) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").write_text(f"#!/bin/sh\necho {found}\n" if found != "broken" else "")
    (checkout / ".venv" / "bin" / "python").chmod(0o755 if found != "broken" else 0o644)
    make(checkout)
    assert told(checkout)[0] == "-m venv --without-pip --clear .venv"
    assert len(told(checkout)) == 4


@pytest.mark.parametrize(("has_pip", "venv", "pip"), [
    (True, "-m venv --without-pip --clear .venv", "--python .venv/bin/python install"),
    (False, "-m venv --clear .venv", "install"),
])  # fmt: skip
def test_a_python_without_pip_gives_the_environment_one(checkout: Path, has_pip: bool, venv: str, pip: str) -> None:
    if not has_pip:
        (checkout / "pip").unlink()
    make(checkout)
    first, *installed = told(checkout)
    assert first == venv
    assert [line.startswith(f"-m pip {pip} --quiet") for line in installed] == [True] * 3
