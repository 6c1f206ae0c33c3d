"""Processes of ours that start at once: forked from one process, the zygote, that has imported everything.

They are children of the process that starts them. Signals, exit codes, descriptors, environment, folder and session are
real. Tests of the start itself start `sys.executable`. `python -P forked_process.py DESCRIPTOR` is the zygote. It
forks twice, so that the process belongs to the nearest ancestor that adopts orphans. A supervisor, and `credhook dev`,
have a zygote of their own for what they start.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import itertools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, AnyStr, Final, NoReturn

#: Bytes of a request, and descriptors with it, at most.
_LONGEST, _MOST = 200_000, 64
#: Variables that Python or an imported module reads before anything else.
_READ_EARLY: Final = frozenset(
    ("PYTHONHOME", "PYTHONDEVMODE", "PYTHONWARNINGS", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONHASHSEED")
)
#: Packages that are imported again where several processes count in one folder.
_COUNTING: Final = {"credhook", "prometheus_client"}
#: Modules that the commands import when they run.
_IMPORTED: Final = (
    "uvloop",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.httptools_impl",
    "credhook.metrics.counting",
    "credhook.receiver.tracing",
    "credhook.sandbox.app",
    "credhook.tracing.spans",
    "credhook.worker.handlers.logging_handler",
    "credhook.worker.process.admin",
    "credhook.worker.process.main",
    "credhook.worker.tracing",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
#: Commands that start further processes.
_SUPERVISING: Final = {"credhook.worker", "credhook.receiver", "worker", "receiver", "dev", "demo"}
#: Options of processes that such a command has started.
_SUPERVISED: Final = {"--supervised", "--lifeline"}
#: Signals that a new process may get before it has handlers.
_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

#: The system's name of a zygote that belongs to a process of ours.
ZYGOTE: Final = "zygote"
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True)
_asking = threading.Lock()


class Forked(subprocess.Popen[AnyStr]):
    """A `subprocess.Popen` of `[sys.executable, …]`. It starts Python anew where the zygote cannot stand in."""

    def _execute_child(self, *given: Any) -> None:
        from support.redis.guarded_redis import guarded  # The zygote, which runs this file, finds no modules of tests.

        environment = guarded(given[0], os.environ if given[6] is None else given[6])
        _start(self, (*given[:6], environment, *given[7:]), super()._execute_child)  # type: ignore[misc]


def _start(process: Any, given: tuple[Any, ...], start: Callable[..., None]) -> None:
    """Start a process as `Popen` does, with the parameters of its `_execute_child` in the standard library."""
    arguments, prepare, passed, folder = given[0], given[2], given[4], given[5]
    environment = dict(os.environ if given[6] is None else given[6])
    safe_path = arguments[1] == "-P"
    command = list(arguments[1 + safe_path :])
    if not hasattr(_libc, "prctl") or prepare not in {None, take_terminal} or _is_early(command, environment):
        start(*given)
        return
    streams: list[int] = [at if at >= 0 else own for own, at in enumerate((given[10], given[13], given[15]))]
    request = {
        "command": command,
        "safe_path": safe_path,
        "folder": str(Path(folder or ".").absolute()),
        "environment": environment,
        "descriptors": [0, 1, 2, *passed],
        "session": given[21],
        "terminal": prepare is take_terminal,
        "ignored": [one for one in signal.Signals if signal.getsignal(one) is signal.SIG_IGN],
    }
    with _asking:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # The orphan becomes a child of this process.
        try:
            socket.send_fds(_zygote(), [json.dumps(request).encode()], [*streams, *passed])
            process.pid = int(_zygote().recv(32) or 0)
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert process.pid, "the zygote is gone"
    process._child_created = True
    process._close_pipe_fds(*given[10:16])


def take_terminal() -> None:
    """Make standard input the new session's terminal, as a window does."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


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
        or not _READ_EARLY.isdisjoint(environment)
        or any(Path(path, "sitecustomize.py").exists() for path in paths if path)
    )


@functools.cache
def _zygote() -> socket.socket:
    """Start the zygote, and return its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL") if name in os.environ}
    with theirs:
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=kept)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _load() -> None:
    """Import the commands, and keep the garbage collector from copying the memory that forks share."""
    commands: dict[str, tuple[str, str]] = importlib.import_module("credhook.cli").COMMANDS
    for module in (*(module for module, _ in commands.values()), *_IMPORTED):
        with contextlib.suppress(ModuleNotFoundError):  # An extra is not installed.
            importlib.import_module(module)
    importlib.import_module("credhook.store.announcements").version()  # It reads all of the code.
    importlib.import_module("credhook.worker.attempt.attempt").distribution("")  # And this, all that is installed.
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
            return _become(received, SimpleNamespace(**json.loads(message)))
        os.waitpid(between, 0)
        for descriptor in (*received, writing):
            os.close(descriptor)
        with os.fdopen(reading, "rb") as told:  # It ends once the fork has closed its end, and is ready.
            control.send(told.read())


def _become(received: list[int], request: Any) -> list[str]:
    """Do what `Popen` and Python do before the command. Return the command, or one of a fork of its own zygote."""
    command: list[str] = request.command
    environment: dict[str, str] = request.environment
    _libc.prctl(_PR_SET_NAME, b"python")
    if request.session:
        os.setsid()
    _keep_descriptors(received, request.descriptors)
    if request.terminal:
        take_terminal()
    may_start = _SUPERVISING & {*command[1:3]} and not _SUPERVISED & {*command}
    if may_start and (of_fork := _lend_zygote()):
        return of_fork
    if "PROMETHEUS_MULTIPROC_DIR" in environment:
        for name in [one for one in sys.modules if one.partition(".")[0] in _COUNTING]:
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request.folder)
    _set_paths(command[0], request.folder, environment.get("PYTHONPATH", ""), safe_path=request.safe_path)
    for stream in (sys.stdout, sys.stderr):
        at_once = stream is sys.stderr or os.isatty(stream.fileno()) or "PYTHONUNBUFFERED" in environment
        stream.reconfigure(line_buffering=at_once)  # type: ignore[union-attr]  # They are Python's own.
    for one in request.ignored:
        signal.signal(one, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return command


def _keep_descriptors(received: list[int], descriptors: list[int]) -> None:
    """Give the received descriptors these numbers, and close all others."""
    beyond = max(*received, *descriptors) + 1
    for place, each in enumerate(received):  # First out of each other's way.
        os.dup2(each, beyond + place)
    for place, number in enumerate(descriptors):
        os.dup2(beyond + place, number)
    for low, high in itertools.pairwise([*sorted(descriptors), os.sysconf("SC_OPEN_MAX")]):
        os.closerange(low + 1, high)


def _set_paths(first: str, folder: str, named: str, *, safe_path: bool) -> None:
    """Begin `sys.path` as Python does for a command with this first word."""
    own = "" if first == "-c" else folder if first == "-m" else str(Path(folder, first).parent)
    paths = [str(Path(folder, one)) for one in named.split(os.pathsep) if one]
    sys.path[:0] = [*([] if safe_path else [own]), *paths]


def _lend_zygote() -> list[str] | None:
    """Give this process a zygote of its own for the processes of ours that it starts. Return their command in them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    start = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def start_ours(process: Any, *given: Any) -> None:
        if list(given[0][:2]) == [sys.executable, "-P"]:
            _start(process, given, functools.partial(start, process))
        else:
            start(process, *given)

    if os.fork():
        theirs.close()
        subprocess.Popen._execute_child = start_ours  # type: ignore[attr-defined]
        globals()["_zygote"] = lambda: ours
        return None
    ours.detach()
    _libc.prctl(_PR_SET_NAME, ZYGOTE.encode())
    os.closerange(0, theirs.fileno())
    os.closerange(theirs.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)
    return _serve(theirs)


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
