"""`credhook …` as an operator types it, in processes that start at once.

Each is forked from a server that has imported the commands and does nothing else, so a dozen of them cost what one
costs that has to import everything. What it is told and what it leaves is a process's: arguments, environment, standard
output and error, exit code.
"""

import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]

#: Seconds that a command may take.
PATIENCE = 60

#: What the server has imported; the rest of a command is imported by its own process.
IMPORTED = [
    "commands",
    "credhook.cli",
    "credhook.doctor.command",
    "credhook.worker.commands.api",
    "credhook.worker.commands.endpoints",
    "credhook.worker.commands.events.command",
]


@dataclass(frozen=True)
class Done:
    """What a command has left."""

    returncode: int
    stdout: str
    stderr: str


def credhook(*arguments: str, environment: Mapping[str, str], folder: Path = ROOT) -> Done:
    """Run `credhook …` in a folder, with nothing but this in its environment."""
    with TemporaryDirectory() as kept:
        out, err = Path(kept, "out"), Path(kept, "err")
        process = _server().Process(target=_run, args=(arguments, dict(environment), folder, out, err))
        process.start()
        process.join(PATIENCE)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
        process.close()
        assert code is not None, f"credhook {' '.join(arguments)} did not end: {err.read_text()}"
        return Done(code, out.read_text(), err.read_text())


def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def _run(arguments: tuple[str, ...], environment: dict[str, str], folder: Path, out: Path, err: Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    # As a new process would find it, which has asked nobody for its path yet.
    sys.path[:0] = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.argv = ["credhook", *arguments]
    from credhook.cli import main  # noqa: PLC0415  Here it is imported already.

    main(list(arguments))
