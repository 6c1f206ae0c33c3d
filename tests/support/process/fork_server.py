"""Start our commands as forks of a Python that has imported their libraries, which saves half a second of each start.

The server is this file, run as a program. For each order it forks a keeper. The keeper forks the command, waits for its
end, and writes process id and exit code to the socket that came with the order. A command imports our modules itself.
It has a server of its own, since supervisors start children. Only streams, lifelines and reports are handed down.
"""

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

#: Those that our commands import.
LIBRARIES: Final = (
    "click cryptography.hazmat.primitives.serialization httpx jinja2 jiter multiprocessing.connection orjson pycurl "
    "prometheus_client.multiprocess pydantic_settings redis.asyncio.sentinel rq standardwebhooks structlog "
    "starlette.applications uvicorn.protocols.http.httptools_impl uvloop"
)
#: Hides two libraries, whose imports take a quarter of a second. structlog imports rich, which release tools bring;
#: redis-py imports OpenTelemetry, which only processes with traces need.
ABSENT: Final = Path(__file__).parent / "absent"
#: Bytes of an order, at most.
_ORDER_BYTES: Final = 150_000


#: Files that come with an order, at most: the keeper's socket, three streams, and what a child gets besides.
_FILES: Final = 8
#: Descriptors from here on are in nobody's way.
_HIGH: Final = 100
#: Signals that end a command. They may reach all of its session, whose servers and keepers outlive them.
_STOPS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
#: The name of servers and keepers, as `ps` shows it.
SERVER: Final = "fork_server"


class Forked:
    """A command that the server has forked. The methods are those of `subprocess.Popen`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        files: Mapping[int, int],
        server: socket.socket | None = None,
        session: bool = True,
        group: bool = False,
    ) -> None:
        """Start it with these descriptors of its own, each of which is a file of ours."""
        ignored = [number for number in _STOPS if server and signal.getsignal(number) == signal.SIG_IGN]
        order = {"command": [*command], "env": {**env}, "cwd": str(cwd), "files": [*files]}
        text = json.dumps(order | {"session": session, "group": group, "ignored": ignored}).encode()
        self._keeper, keeper = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with keeper:
            socket.send_fds(server or _server(), [text], [keeper.fileno(), *files.values()])
        self.pid = int(self._keeper.recv(16))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._keeper.settimeout(timeout)
            try:
                self.returncode = int(self._keeper.recv(16))
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None
            self._keeper.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def can_fork(command: Sequence[str], env: Mapping[str, str], ours: Mapping[str, str] | None = None) -> bool:
    """Return True if a new Python would start with the settings of the server's, which are ours by default."""
    ours = _environment() if ours is None else ours
    names = {name for name in (*env, *ours) if name.startswith(("PYTHON", "LANG", "LC_", "OTEL_"))}
    return "-m" in command[:2] and all(env.get(name) == ours.get(name) for name in names)


@cache
def _environment() -> dict[str, str]:
    """Return the server's environment, which is this process's of now."""
    return os.environ | {"PYTHONPATH": str(ABSENT)}


@cache
def _server() -> socket.socket:
    """Start the server of this process, which ends with it."""
    ours, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with orders:
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, str(orders.fileno())],
            env=_environment(),
            pass_fds=[orders.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


class _Popen(subprocess.Popen[Any]):
    """What a forked command starts: our commands are forks as well, if they need no pipe."""

    orders: socket.socket
    _fork: Forked | None = None

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *options: Any) -> None:
        _, pass_fds, cwd, env, _, _, shell, *pipes = options
        (stdin, to_stdin, from_stdout, stdout, from_stderr, stderr), session, group = pipes[:6], *pipes[-2:]
        command, env = [*args][1:], os.environ if env is None else env
        ours = args[0] == sys.executable and "credhook" in " ".join(command[:3])
        if not ours or shell or preexec_fn or max(to_stdin, from_stdout, from_stderr) >= 0:
            return super()._execute_child(args, executable, preexec_fn, *options)  # type: ignore[misc,no-any-return]
        if not can_fork(command, env, os.environ):
            return super()._execute_child(args, executable, preexec_fn, *options)  # type: ignore[misc,no-any-return]
        streams = {own: own if file < 0 else file for own, file in enumerate((stdin, stdout, stderr))}
        self._fork = Forked(
            command,
            env=env,
            cwd=Path(cwd or Path.cwd()),
            files=streams | {file: file for file in pass_fds},
            server=self.orders,
            session=session,
            group=group == 0,
        )
        self.pid, self._child_created = self._fork.pid, True
        self._close_pipe_fds(*pipes[:6])  # type: ignore[attr-defined]
        return None

    def _internal_poll(self, *options: Any) -> int | None:
        if self._fork is None:
            return super()._internal_poll(*options)  # type: ignore[misc,no-any-return]
        self.returncode = self._fork.poll()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._fork is None:
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]
        self.returncode = self._fork.wait(timeout)
        return self.returncode


def _next_order(orders: socket.socket) -> dict[str, Any]:
    """Wait for orders. Return each in a process of its own, which is to carry it out."""
    while True:
        text, files, *_ = socket.recv_fds(orders, _ORDER_BYTES, _FILES)
        if not text:
            os._exit(0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        order = json.loads(text)
        if os.fork() == 0:
            orders.close()
            _keep(order, *files)
            return dict(order)
        for file in files:
            os.close(file)


def _keep(order: Mapping[str, Any], keeper: int, *files: int) -> None:
    """Return in a fork with these files. Report its process id, and its exit code once it has ended."""
    if (pid := os.fork()) == 0:
        if order["session"]:
            os.setsid()
        if order["group"]:
            os.setpgid(0, 0)
        os.close(keeper)
        copies = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files]
        for file in files:
            os.close(file)
        for copy, file in zip(copies, order["files"], strict=True):
            os.dup2(copy, file)
            os.close(copy)
        if order["session"] and os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # As a window does.
        return
    os.dup2(1, 2)  # Whoever reads the tests' errors should not wait for this process.
    for file in files:
        os.close(file)
    os.write(keeper, str(pid).encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):  # The tests are over.
        os.write(keeper, str(code).encode())
    os._exit(0)


def _serve(orders: socket.socket) -> dict[str, Any]:
    """Be the server of this socket, and return in each process that is to carry out an order."""
    comm = Path("/proc/self/comm")
    name = comm.read_text()
    comm.write_text(SERVER)
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    order = _next_order(orders)
    comm.write_text(name)
    for number in _STOPS:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in order["ignored"] else default)
    if max(order["files"]) > 2:  # It is a child of a supervisor, and supervises nothing.
        return order
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        return _serve(theirs)
    theirs.close()
    _Popen.orders = ours
    subprocess.Popen = _Popen  # type: ignore[misc]
    return order


if __name__ == "__main__":
    for name in LIBRARIES.split():
        importlib.import_module(name)
    gc.freeze()  # The collector would look at all of it again in each fork, and copy its memory.
    order = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    command = order["command"]
    if command[0] != "-P":
        sys.path.insert(0, order["cwd"])
    module, *sys.argv[1:] = command[command.index("-m") + 1 :]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
