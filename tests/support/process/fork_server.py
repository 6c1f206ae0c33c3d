"""Start our commands as forks of a Python that has imported most of their modules: half a second less for each start.

The server is this file, run as a program. `subprocess` sends it the commands that tests start. For each command the
server forks a keeper, which forks the command and ends. Linux then hands the command to the process that asked for it:
this process is its parent, as `subprocess` expects. The command has a server of its own, for commands that it starts.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import Any, Final

#: What our commands import: libraries, and those of our modules that read no environment when they are imported.
MODULES: Final = (
    "click cryptography.hazmat.primitives.serialization httpx jinja2 jiter multiprocessing.connection orjson pycurl "
    "prometheus_client.multiprocess pydantic_settings redis.asyncio.sentinel rq standardwebhooks structlog "
    "starlette.applications uvicorn.protocols.http.httptools_impl uvloop "
    "credhook.settings credhook.worker.api.client credhook.ops.verdict"
)
#: Hides two libraries, whose imports take a quarter of a second. structlog imports rich, which release tools bring;
#: redis-py imports OpenTelemetry, which only processes with traces need.
ABSENT: Final = Path(__file__).parent / "absent"
#: What a new Python would read in a folder of its path before it runs a command.
_READ_FIRST: Final = ("credhook", "sitecustomize.py")
#: Bytes of an order, at most.
_ORDER_BYTES: Final = 150_000
#: Files that come with an order, at most: the reply's socket, three streams, a lifeline and a report.
_ORDER_FILES: Final = 8
#: Descriptors from here on are in nobody's way.
_HIGH: Final = 100
#: Signals that end a command. They may reach its whole group, in which its server is.
_STOPS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
#: The name of a command's server, as `ps` shows it.
SERVER: Final = "fork_server"
#: Makes a process the parent of orphans among its descendants, in prctl(2).
_PR_SET_CHILD_SUBREAPER: Final = 36


class ForkExec:
    """Stands in for the function by which `subprocess` starts a program."""

    def __init__(self, server: Callable[[str | None], socket.socket | None]) -> None:
        """`server` returns the server of Pythons whose PYTHONPATH begins with this folder, or None."""
        self._server, self._start = server, subprocess._fork_exec  # type: ignore[attr-defined]
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> int:
        """Start a command of ours by a server, any other program as `subprocess` does. Return the process id."""
        (program, *command), _, _, kept, cwd, variables, *rest = arguments
        (stdin, _, _, stdout, _, stderr), (_, error_pipe, _, session, group), *more = rest[:6], rest[6:11], rest[11:16]
        env = {**os.environ} if variables is None else dict(os.fsdecode(each).split("=", 1) for each in variables)
        forks = program == sys.executable and _forks(command, env) and more == [[None, None, None, -1, None]]
        first, *others = env.get("PYTHONPATH", "").split(os.pathsep)
        forks = forks and not any((Path(folder) / name).exists() for folder in others for name in _READ_FIRST)
        server = self._server(first or None) if forks else None
        if server is None:
            return int(self._start(*arguments))
        streams = {own: own if file < 0 else file for own, file in enumerate((stdin, stdout, stderr))}
        files = streams | {file: file for file in kept if file != error_pipe}
        order = {
            "command": command,
            "env": env,
            "cwd": os.fsdecode(cwd or Path.cwd()),
            "files": [*files],
            "session": session,
            "group": group == 0,
            "ignored": [number for number in _STOPS if signal.getsignal(number) == signal.SIG_IGN],
        }
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        with self._lock:
            _adopt(True)
            try:
                pid = _ask(server, order, files.values())
            finally:
                _adopt(False)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        except BaseException:  # A signal has come meanwhile, and nobody will hear of the command.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        return pid


def _ask(server: socket.socket, order: Mapping[str, Any], files: Iterable[int]) -> int:
    """Let the server fork a command, and return its process id once it is our child."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            socket.send_fds(server, [json.dumps(order).encode()], [theirs.fileno(), *files])
        pid = int(ours.recv(16))
        assert not ours.recv(1)  # The keeper has ended.
        return pid


def fork_commands() -> None:
    """Let commands of ours that this process starts be forks, where a process can adopt orphans."""
    if sys.platform == "linux":
        subprocess._fork_exec = ForkExec(_server)  # type: ignore[attr-defined]


def _forks(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return True if a new Python would start with the settings of the server's."""
    names = {name for name in (*env, *os.environ) if name.startswith(("PYTHON", "LANG", "LC_"))}
    same = all(env.get(name) == os.environ.get(name) for name in names - {"PYTHONUNBUFFERED", "PYTHONPATH"})
    return same and re.match(r"(-P )?-m credhook\b", " ".join(command)) is not None


@cache
def _server(folder: str | None) -> socket.socket | None:
    """Start a server, which ends with this process: one with the libraries that are hidden, or one without."""
    if folder not in (str(ABSENT), None):
        return None
    ours, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with orders:
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(orders.fileno())],
            env=os.environ | ({} if folder is None else {"PYTHONPATH": folder}),
            pass_fds=[orders.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


def _adopt(orphans: bool) -> None:
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0) == 0


def _next_order(orders: socket.socket) -> dict[str, Any]:
    """Wait for orders. Return each in a process of its own, which is to carry it out."""
    while True:
        text, files, *_ = socket.recv_fds(orders, _ORDER_BYTES, _ORDER_FILES)
        if not text:
            os._exit(0)
        reply, *files = files
        if (keeper := os.fork()) == 0:
            if pid := os.fork():
                os.write(reply, str(pid).encode())
                os._exit(0)
            orders.close()
            os.close(reply)
            order: dict[str, Any] = json.loads(text)
            _take(order, *files)
            return order
        os.waitpid(keeper, 0)
        for file in (reply, *files):
            os.close(file)


def _take(order: Mapping[str, Any], *files: int) -> None:
    """Have the session, the group, the files and the signals that the order asks for."""
    if order["session"]:
        os.setsid()
    if order["group"]:
        os.setpgid(0, 0)
    copies = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files]
    for file in files:
        os.close(file)
    for copy, file in zip(copies, order["files"], strict=True):
        os.dup2(copy, file)
        os.close(copy)
    if order["session"] and os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # As a window does.
    for number in _STOPS:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in order["ignored"] else default)


def _with_server(order: dict[str, Any]) -> dict[str, Any]:
    """Give this command a server. Return the order, and in each process that the server forks, the order for that."""
    while max(order["files"]) < 3:  # Otherwise it is the child of a supervisor, and supervises nothing.
        comm, name = Path("/proc/self/comm"), Path("/proc/self/comm").read_text()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork():
            theirs.close()
            folder = str(ABSENT) if sys.path[0] == str(ABSENT) else None
            subprocess._fork_exec = ForkExec({folder: ours}.get)  # type: ignore[attr-defined]
            break
        ours.close()
        comm.write_text(SERVER)
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        for number in _STOPS:
            signal.signal(number, signal.SIG_IGN)
        order = _next_order(theirs)
        comm.write_text(name)
    return order


if __name__ == "__main__":
    for name in MODULES.split():
        importlib.import_module(name)
    gc.freeze()  # The collector would look at all of it again in each fork, and copy its memory.
    order = _with_server(_next_order(socket.socket(fileno=int(sys.argv[1]))))
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    if "PYTHONUNBUFFERED" in os.environ:
        sys.stdout, sys.stderr = (TextIOWrapper(FileIO(file, "w"), write_through=True) for file in (1, 2))
    command = order["command"]
    sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)[1:]
    if command[0] != "-P":
        sys.path.insert(0, order["cwd"])
    module, *sys.argv[1:] = command[command.index("-m") + 1 :]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
