"""Our programs as processes, which reach the tests' Redis as users with restricted rights."""

import fcntl
import io
import os
import subprocess
import sys
import termios
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, Any

import pytest

from credhook.cli import main
from support.checkout import ROOT
from support.process.fork_server import ABSENT, Forked, can_fork
from support.redis.guarded_redis import guarded

#: What a command has left: `returncode`, `stdout`, `stderr`.
Done = subprocess.CompletedProcess[str]


def start(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, python: str = sys.executable, **options: Any
) -> "subprocess.Popen[Any]":
    """Start Python with this command line, as `subprocess.Popen` does."""
    return subprocess.Popen([python, *command], env=_environment(command, env), **options)


def start_session(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    output: IO[Any],
    python: str,
    pass_fds: Collection[int],
) -> "subprocess.Popen[Any] | Forked":
    """Start Python with this command line in a session of its own: as a fork where that makes no difference."""
    environment = _environment(command, env)
    if python == sys.executable and not pass_fds and can_fork(command, environment):
        return Forked(command, env=environment, cwd=cwd, output=output)
    return subprocess.Popen(
        [python, *command],
        env=environment,
        cwd=cwd,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def run(*command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 240) -> Done:
    """Run Python with this command line, and return what it leaves."""
    return subprocess.run(
        [sys.executable, *command],
        env=_environment(command, env),
        cwd=cwd,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )


def _environment(command: Sequence[str], env: Mapping[str, str] | None) -> dict[str, str]:
    environment = guarded(command, os.environ if env is None else env)
    if not any(name.startswith("OTEL_") for name in environment):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ABSENT), environment.get("PYTHONPATH"))))
    return environment


def credhook(*arguments: str, environment: Mapping[str, str], folder: Path = ROOT) -> Done:
    """Run `credhook …` in a folder, with nothing but this in its environment."""
    return run("-m", "credhook", *arguments, env=environment, cwd=folder)


def invoke(*arguments: str, environment: Mapping[str, str], folder: Path = ROOT) -> Done:
    """Run `credhook …` as `credhook` does, but in this process, which saves half a second of imports."""
    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code, settings = 0, guarded(("-m", "credhook", *arguments), environment)
    paths = [*filter(None, settings.get("PYTHONPATH", "").split(os.pathsep))]
    with _process_of_its_own(settings, paths), redirect_stdout(out), redirect_stderr(errors), chdir(folder):
        try:
            main([*arguments])
        except SystemExit as end:
            code = int(end.code or 0)
    if folder != ROOT:
        _forget_modules_of({folder, *map(Path, paths)})
    texts = [stream.buffer.getvalue().decode() for stream in (out, errors)]
    return Done(arguments, code, *texts)


@contextmanager
def _process_of_its_own(settings: Mapping[str, str], paths: Sequence[str]) -> Iterator[None]:
    """Have this environment and these paths during the block. What the block adds to them goes as well."""
    environment, known_paths = dict(os.environ), list(sys.path)
    os.environ.clear()
    os.environ.update(settings)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for path in paths:
                patch.syspath_prepend(path)
            yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = known_paths


def _forget_modules_of(folders: set[Path]) -> None:
    """Let the next command import them again, as a process of its own would."""
    for name, module in tuple(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent in folders:
            del sys.modules[name]


def take_terminal() -> None:
    """Make standard input the new session's terminal, as a window does."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
