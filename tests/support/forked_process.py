"""Processes of ours that start at once: forked from one process, the zygote, that has imported everything.

They are children of the process that starts them. Signals, exit codes, descriptors, environment, folder and session are
real. Tests of the start itself start `sys.executable`. `python -P forked_process.py DESCRIPTOR` is the zygote. It
forks twice, so that the process belongs to the nearest ancestor that adopts orphans.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import itertools
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, AnyStr, Final, NoReturn

#: Bytes of a request, and descriptors with it, at most.
_LONGEST, _MOST = 200_000, 64
#: Variables that Python or an imported module reads before anything else.
_READ_EARLY: Final = (
    *("PYTHONHOME", "PYTHONDEVMODE", "PYTHONWARNINGS", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONHASHSEED"),
    "PROMETHEUS_MULTIPROC_DIR",
)
#: Modules that the commands import when they run.
_IMPORTED: Final = (
    "uvloop",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.httptools_impl",
    "credhook.metrics.counting",
    "credhook.receiver.tracing",
    "credhook.tracing.spans",
    "credhook.worker.handlers.logging_handler",
    "credhook.worker.process.admin",
    "credhook.worker.process.main",
    "credhook.worker.tracing",
)
#: Signals that a new process may get before it has handlers.
_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

_PR_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True)
_asking = threading.Lock()


class Forked(subprocess.Popen[AnyStr]):
    """A `subprocess.Popen` of `[sys.executable, …]`. It starts Python anew where the zygote cannot stand in."""

    def _execute_child(self, *given: Any) -> None:
        # In the order of its parameters in the standard library.
        arguments, prepare, folder, variables = (given[place] for place in (0, 2, 5, 6))
        passed: tuple[int, ...] = given[4]
        from guarded_redis import guarded  # The zygote, which runs this file, finds no modules of tests.

        environment = guarded(arguments, os.environ if variables is None else variables)
        given = (*given[:6], environment, *given[7:])
        safe_path = arguments[1] == "-P"
        command = list(arguments[1 + safe_path :])
        if not hasattr(_libc, "prctl") or prepare or _is_early(command, environment) or _inherited() != _zygote()[1]:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        streams: list[int] = [at if at >= 0 else own for own, at in enumerate((given[10], given[13], given[15]))]
        request = {
            "command": command,
            "safe_path": safe_path,
            "folder": str(Path(folder or ".").absolute()),
            "environment": environment,
            "descriptors": [0, 1, 2, *passed],
            "session": given[21],
        }
        with _asking:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # The orphan becomes a child of this process.
            try:
                socket.send_fds(_zygote()[0], [json.dumps(request).encode()], [*streams, *passed])
                self.pid = int(_zygote()[0].recv(32) or 0)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert self.pid, "the zygote is gone"
        self._child_created = True
        self._close_pipe_fds(*given[10:16])  # type: ignore[attr-defined]


def run(*command: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run Python with this command line, as `subprocess.run` does."""
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


def _is_early(command: list[str], environment: dict[str, str]) -> bool:
    """Return True if Python does something before the command that a fork cannot do."""
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    return (
        (command[0].startswith("-") and command[0] not in {"-m", "-c"})
        or any(name in environment for name in _READ_EARLY)
        or any(Path(path, "sitecustomize.py").exists() for path in paths if path)
    )


def _inherited() -> object:
    """Return the state that a process takes over from its parent and a fork of the zygote would not."""
    ignored = [one for one in signal.Signals if signal.getsignal(one) is signal.SIG_IGN]
    return resource.getrlimit(resource.RLIMIT_NOFILE), ignored


@functools.cache
def _zygote() -> tuple[socket.socket, object]:
    """Start the zygote. Return its socket, and the state that it took over."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL") if name in os.environ}
    with theirs:
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=kept)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours, _inherited()


def _load() -> None:
    """Import the commands, and keep the garbage collector from copying the memory that forks share."""
    commands: dict[str, tuple[str, str]] = importlib.import_module("credhook.cli").COMMANDS
    for module in (*(module for module, _ in commands.values()), *_IMPORTED):
        with contextlib.suppress(ModuleNotFoundError):  # An extra is not installed.
            importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _serve(control: socket.socket) -> list[str]:
    """Fork for each request. Return in each fork, with its command."""
    while True:
        message, received, _, _ = socket.recv_fds(control, _LONGEST, _MOST)
        if not message:
            os._exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if pid := os.fork():
                os.write(writing, str(pid).encode())
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0002)
            control.detach()  # Its number becomes another descriptor's.
            return _become(received, **json.loads(message))
        os.waitpid(between, 0)
        for descriptor in (*received, writing):
            os.close(descriptor)
        with os.fdopen(reading, "rb") as told:  # It ends once the fork has closed its end, and is ready.
            control.send(told.read())


def _become(
    received: list[int],
    *,
    command: list[str],
    safe_path: bool,
    folder: str,
    environment: dict[str, str],
    descriptors: list[int],
    session: bool,
) -> list[str]:
    """Do what Python does before the command."""
    if session:
        os.setsid()
    beyond = max(*received, *descriptors) + 1
    for place, each in enumerate(received):  # First out of each other's way.
        os.dup2(each, beyond + place)
    for place, number in enumerate(descriptors):
        os.dup2(beyond + place, number)
    for low, high in itertools.pairwise([*sorted(descriptors), os.sysconf("SC_OPEN_MAX")]):
        os.closerange(low + 1, high)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    first = command[0]
    own = "" if first == "-c" else folder if first == "-m" else str(Path(folder, first).parent)
    named = [str(Path(folder, one)) for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[:0] = [*([] if safe_path else [own]), *named]
    for stream in (sys.stdout, sys.stderr):
        at_once = stream is sys.stderr or os.isatty(stream.fileno()) or "PYTHONUNBUFFERED" in environment
        stream.reconfigure(line_buffering=at_once)  # type: ignore[union-attr]  # They are Python's own.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return command


def _run(command: list[str]) -> int:
    """Run the command as Python does. Return the exit code, negative for a signal."""
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        elif command[0] == "-c":
            sys.argv = ["-c", *command[2:]]
            exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = command
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001  Any error ends a process.
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(code: int) -> NoReturn:
    """End as Python does, without tearing the modules down, which would cost as much as their import."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _load()
    _end(_run(_serve(socket.socket(fileno=int(sys.argv[1])))))
