"""A process that has imported everything, and forks those that a test starts: `python -P zygote.py DESCRIPTOR`.

forked_process.py sends it the commands to run over the socket of that descriptor; it answers with the process's id. It
forks twice, so that the new process belongs to the nearest ancestor that adopts orphans. It does nothing but fork: a
forked process has the state of a new Python process, and the imports.
"""

import atexit
import contextlib
import gc
import importlib
import itertools
import json
import os
import resource
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parent))
import forked_process

del sys.path[0]

#: What the commands import when they run, besides the modules in which they are.
IMPORTED = (
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
#: Who decides while they are imported how to count: by one variable, which says where several processes count together.
DECIDING, DECISION = ("credhook", "prometheus_client"), "PROMETHEUS_MULTIPROC_DIR"
#: What draws a key while it is imported, and who has the key from there: each process has its own.
DRAWING = tuple(f"credhook.receiver.{name}" for name in ("refusals", "announcement", "app", "command"))
#: Those that Python lets a process inherit as ignored, and a new process can be sent before it has looked around.
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Job:
    """What is to run, and in which circumstances; as forked_process.py writes it.

    Attributes:
        command: of Python's command line: `-m module …`, `-c program …` or `script …`.
        safe_path: whether Python has been told not to look for modules in the folder (`-P`).
        folder: the working directory.
        environment: all of it.
        descriptors: the numbers that the descriptors sent along have in the process.
        ignored: signals.
        files: limits of open ones, soft and hard.
        session: whether it leads a session of its own.
        terminal: whether standard input is the terminal of that session.
        supervises: whether it is to start others of ours as fast as it was started.
    """

    command: list[str]
    safe_path: bool
    folder: str
    environment: dict[str, str]
    descriptors: list[int]
    ignored: list[int]
    files: Sequence[int]
    session: bool
    terminal: bool
    supervises: bool


def load() -> None:
    """Import what is wanted, and keep the collector away from it, which would copy the memory that forks share."""
    commands: Mapping[str, tuple[str, str]] = importlib.import_module("credhook.cli").COMMANDS
    for module in (*(place.partition(":")[0] for place, _ in commands.values()), *IMPORTED):
        with contextlib.suppress(ModuleNotFoundError):  # Of an extra that is not installed.
            importlib.import_module(module)
    for module in DRAWING:
        del sys.modules[module]
    gc.collect()
    gc.freeze()


def serve(control: socket.socket) -> Job:
    """Fork whatever is asked for; return in each fork, with its job."""
    while True:
        message, received, _, _ = socket.recv_fds(control, forked_process.LONGEST, forked_process.MOST)
        if not message:
            os._exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if pid := os.fork():
                os.write(writing, str(pid).encode())
                os._exit(0)
            job = Job(**json.loads(message))
            while os.getppid() == between:
                time.sleep(0.0002)
            _call_it(Path(sys.executable).name)
            if job.session:
                os.setsid()
            control.detach()  # The number becomes another's.
            _take(received, job.descriptors)
            if job.terminal:
                forked_process.take_terminal()
            return job
        os.waitpid(between, 0)
        for descriptor in (*received, writing):
            os.close(descriptor)
        with os.fdopen(reading, "rb") as told:  # Until the fork has closed it as well, and is what it was asked to be.
            control.send(told.read())


def begin(control: socket.socket) -> Job:
    """Serve; in each fork, make the process what its job says."""
    job = serve(control)
    os.chdir(job.folder)
    os.environ.clear()
    os.environ.update(job.environment)
    soft, hard = job.files
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if job.supervises:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.detach()
            _take([theirs.detach(), *[os.open(os.devnull, os.O_RDWR)] * 3], [3, 0, 1, 2])
            _call_it(forked_process.SPARE)
            return begin(socket.socket(fileno=3))
        theirs.close()
        forked_process.fork_from(ours)
    _be_as_new(job)
    return job


def _be_as_new(job: Job) -> None:
    """Do what Python does before the command, and undo what the imports have decided."""
    first, *_ = job.command
    own = "" if first == "-c" else job.folder if first == "-m" else str(Path(job.folder, first).parent)
    named = [str(Path(job.folder, one)) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[:0] = [*([] if job.safe_path else [own]), *named]
    for stream in (sys.stdout, sys.stderr):
        at_once = stream is sys.stderr or os.isatty(stream.fileno()) or "PYTHONUNBUFFERED" in os.environ
        stream.reconfigure(line_buffering=at_once)  # type: ignore[union-attr]  # They are Python's own.
    if DECISION in os.environ:
        for name in [name for name in sys.modules if name.partition(".")[0] in DECIDING]:
            del sys.modules[name]
    for number in SIGNALS:
        as_ever = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in job.ignored else as_ever)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _call_it(name: str) -> None:
    Path("/proc/self/comm").write_text(name)


def _take(descriptors: list[int], numbers: list[int]) -> None:
    """Give the descriptors these numbers, and close all others."""
    beyond = max(*descriptors, *numbers) + 1
    for place, each in enumerate(descriptors):  # First out of each other's way.
        os.dup2(each, beyond + place)
    for place, number in enumerate(numbers):
        os.dup2(beyond + place, number)
    kept = sorted(numbers)
    for low, high in itertools.pairwise([*kept, os.sysconf("SC_OPEN_MAX")]):
        os.closerange(low + 1, high)


def run(command: list[str]) -> int:
    """Run it as Python does; the exit code, or what `subprocess` calls one that a signal has ended."""
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
    except BaseException as error:  # noqa: BLE001  Whatever has come this far ends a process.
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(code: int) -> NoReturn:
    """End as Python does, but for the modules' own end, which would cost what their import has cost."""
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
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    load()
    end(run(begin(socket.socket(fileno=int(sys.argv[1]))).command))
