"""Processes of ours that start at once: forked from one that has imported everything, which zygote.py is.

They are processes as any other, children of whoever starts them: signals, exit codes, descriptors, environment, folder
and session are real, and so is what kills them. What is not: they have not imported anything themselves. Tests of the
start itself start `sys.executable`.
"""

import atexit
import ctypes
import fcntl
import functools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, AnyStr, NamedTuple

#: Bytes of a request, and descriptors with it, at most.
LONGEST, MOST = 200_000, 64
#: What the zygote of a supervisor calls itself, which stands among the supervisor's children.
SPARE = "zygote"

_ZYGOTE = Path(__file__).with_name("zygote.py")
#: Those that start others of ours, unless they have been started by one themselves.
_SUPERVISORS = {"worker", "receiver", "dev", "demo"}
_OF_CHILDREN = {"--supervised", "--fd"}
#: Variables that Python reads before anything else.
_OF_PYTHON = ("PYTHONHOME", "PYTHONDEVMODE", "PYTHONWARNINGS", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONHASHSEED")
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_asking = threading.Lock()


class Forked(subprocess.Popen[AnyStr]):
    """A `subprocess.Popen` of `[sys.executable, …]`."""

    def _execute_child(self, *arguments: Any) -> None:
        if not hasattr(_libc, "prctl"):  # Of Linux alone.
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        _start(self, _Given(*arguments), _zygote(), super()._execute_child)  # type: ignore[misc]


def run(*command: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """`subprocess.run` of Python with this command line: what it has printed, and its exit code."""
    patience = options.pop("timeout", 60)
    with Forked(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    ) as process:
        try:
            out, err = process.communicate(timeout=patience)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def take_terminal() -> None:
    """Make standard input the new session's terminal, as a window does: the one `preexec_fn` that forks know."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def fork_from(zygote: socket.socket) -> None:
    """Have this process fork its children of ours from a zygote of its own, though it knows nothing of that."""
    execute: Any = subprocess.Popen.__dict__["_execute_child"]

    def fork_ours(self: "subprocess.Popen[Any]", *arguments: Any) -> None:
        given = _Given(*arguments)
        otherwise = functools.partial(execute, self)
        command = [] if isinstance(given.args, str) else [one for one in given.args if one != "-P"]
        if command[:2] == [sys.executable, "-m"] and command[2].partition(".")[0] == "credhook":
            _start(self, given, zygote, otherwise)
        else:
            otherwise(*given)

    subprocess.Popen._execute_child = fork_ours  # type: ignore[attr-defined]


class _Given(NamedTuple):
    """What `subprocess.Popen._execute_child` is given, in its order."""

    args: Sequence[str]
    executable: object
    preexec_fn: object
    close_fds: object
    pass_fds: Sequence[int]
    cwd: "os.PathLike[str] | str | None"
    env: Mapping[str, str] | None
    startupinfo: object
    creationflags: object
    shell: object
    p2cread: int
    p2cwrite: int
    c2pread: int
    c2pwrite: int
    errread: int
    errwrite: int
    restore_signals: object
    gid: object
    gids: object
    uid: object
    umask: object
    start_new_session: bool
    process_group: object


def _start(
    process: "subprocess.Popen[Any]", given: _Given, zygote: socket.socket, otherwise: Callable[..., None]
) -> None:
    """Do what `subprocess.Popen._execute_child` does, by asking a zygote; `otherwise`, where it cannot do it."""
    environment = dict(os.environ if given.env is None else given.env)
    safe_path = given.args[1] == "-P"
    command = list(given.args[1 + safe_path :])
    prepared = given.preexec_fn not in {None, take_terminal}
    if given.args[0] != sys.executable or prepared or _begins_by_itself(command, environment):
        otherwise(*given)
        return
    words = [*command[1].split(".")[1:], *command[2:]] if command[0] == "-m" else []
    streams = [at if at >= 0 else own for own, at in enumerate((given.p2cread, given.c2pwrite, given.errwrite))]
    request = {
        "command": command,
        "safe_path": safe_path,
        "folder": str(Path(given.cwd or ".").absolute()),
        "environment": environment,
        "descriptors": [0, 1, 2, *given.pass_fds],
        "ignored": [one for one in signal.Signals if signal.getsignal(one) is signal.SIG_IGN],
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "session": given.start_new_session,
        "terminal": given.preexec_fn is take_terminal,
        "supervises": bool(_SUPERVISORS.intersection(words[:1])) and not _OF_CHILDREN.intersection(words),
    }
    with _asking, _taking_orphans():
        socket.send_fds(zygote, [json.dumps(request).encode()], [*streams, *given.pass_fds])
        process.pid = int(zygote.recv(32) or 0)
    assert process.pid, "the zygote is gone"
    process._child_created = True  # type: ignore[attr-defined]
    process._close_pipe_fds(*given[10:16])  # type: ignore[attr-defined]


def _begins_by_itself(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether Python is to do something before the command that cannot be made up for."""
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    return (
        (command[0].startswith("-") and command[0] not in {"-m", "-c"})
        or any(name in environment for name in _OF_PYTHON)
        or any(Path(path, "sitecustomize.py").exists() for path in paths if path)
    )


@contextmanager
def _taking_orphans() -> Iterator[None]:
    """Let children of processes below this one that have lost their parent become this one's, instead of init's."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@functools.cache
def _zygote() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL") if name in os.environ}
    with theirs:
        command = [sys.executable, "-P", str(_ZYGOTE), str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=kept, cwd=_ZYGOTE.parent)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
