"""Environments for the peers: made once under .credhook/bench, and again when their lock changes."""

import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

import click

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]

#: Everything that the benchmark writes. Git ignores it.
SCRATCH: Final = ROOT / ".credhook" / "bench"

PROGRAMS: Final = HERE / "programs"


class Missing(Exception):
    """A tool is missing that the benchmark does not install. The message says how to install it."""


def python(lock: Path) -> Path:
    """Return the interpreter of the environment that a lock file describes."""
    interpreter = SCRATCH / lock.stem / "bin" / "python"

    def install(folder: Path) -> list[str]:
        venv.create(folder, with_pip=True, clear=True)
        return [str(interpreter), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)]

    _installed(SCRATCH / lock.stem, lock, install)
    return interpreter


def node(program: Path) -> Path:
    """Return the program's copy beside its packages, where Node looks for them."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is missing: install Node 20 or newer (Debian: apt install nodejs npm)")
    lock = PROGRAMS / "package-lock.json"

    def install(folder: Path) -> list[str]:
        for name in ("package.json", lock.name):
            shutil.copy(PROGRAMS / name, folder)
        # Not `npm ci`: it refuses a lock that lacks the optional packages of other systems.
        return ["npm", "install", "--loglevel", "error", "--no-audit", "--no-fund"]

    _installed(SCRATCH / "node", lock, install)
    return Path(shutil.copy(program, SCRATCH / "node"))


def say(line: str) -> None:
    """Tell the user what happens. Figures go to standard output."""
    click.echo(line, err=True)


def _installed(folder: Path, lock: Path, install: Callable[[Path], list[str]]) -> None:
    """Prepare the folder and run the command that `install` returns, unless the lock was installed before."""
    stamp, digest = folder / ".installed", sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    say(f"installing {folder.relative_to(ROOT)} (once)")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(install(folder), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{folder.relative_to(ROOT)} could not be installed: {done.stderr.strip()[-500:]}")
    stamp.write_text(digest)
