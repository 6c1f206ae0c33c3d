"""Environments for what is not in our requirements: made once under .credhook/bench, again when their lock changes."""

import shutil
import subprocess
import sys
import venv
from hashlib import sha256
from pathlib import Path
from typing import Final

import click

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]

#: Everything that the benchmark writes; git ignores it.
SCRATCH: Final = ROOT / ".credhook" / "bench"

PROGRAMS: Final = HERE / "programs"


class Missing(Exception):
    """Something that the benchmark does not install itself is not there; the message says how to install it."""


def python(lock: Path) -> Path:
    """The interpreter of the environment that a lock file describes.

    Raises:
        Missing: it could not be made.
    """
    folder = SCRATCH / lock.stem
    interpreter = folder / "bin" / "python"
    if not _is_current(folder, lock):
        _begin(folder)
        venv.create(folder, with_pip=True, clear=True)
        _run([str(interpreter), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)], folder)
        _end(folder, lock)
    return interpreter


def node(program: Path) -> Path:
    """The program's copy beside its packages, which is where Node looks for them.

    Raises:
        Missing: there is no Node, or the packages could not be installed.
    """
    for wanted in ("node", "npm"):
        if shutil.which(wanted) is None:
            raise Missing(f"{wanted} is missing: install Node 20 or newer (Debian: apt install nodejs npm)")
    lock = PROGRAMS / "package-lock.json"
    folder = SCRATCH / "node"
    if not _is_current(folder, lock):
        _begin(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", lock.name):
            shutil.copy(PROGRAMS / name, folder)
        # Not `npm ci`: it refuses a lock that lacks the optional packages of other systems.
        _run(["npm", "install", "--loglevel", "error", "--no-audit", "--no-fund"], folder)
        _end(folder, lock)
    return Path(shutil.copy(program, folder))


def say(line: str) -> None:
    """Tell whoever waits what is going on; figures go to standard output."""
    click.echo(line, err=True)


def _is_current(folder: Path, lock: Path) -> bool:
    stamp = folder / ".installed"
    return stamp.exists() and stamp.read_text() == _digest(lock)


def _begin(folder: Path) -> None:
    say(f"installing {folder.relative_to(ROOT)} (once)")


def _end(folder: Path, lock: Path) -> None:
    (folder / ".installed").write_text(_digest(lock))


def _digest(lock: Path) -> str:
    return sha256(lock.read_bytes() + sys.version.encode()).hexdigest()


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{folder.relative_to(ROOT)} could not be installed: {done.stderr.strip()[-500:]}")
