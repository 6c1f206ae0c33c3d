"""Start our commands as forks of a Python that has imported their libraries, which saves half a second of each start.

The server is this file, run as a program. For each order it forks a keeper. The keeper forks the command, waits for its
end, and writes process id and exit code to the socket that came with the order. A command imports our modules itself.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

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


class Forked:
    """A command that the server has forked. The methods are those of `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: IO[Any]) -> None:
        order = json.dumps({"command": [*command], "env": {**env}, "cwd": str(cwd)}).encode()
        self._keeper, keeper = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with keeper:
            socket.send_fds(_server(), [order], [keeper.fileno(), output.fileno()])
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


def can_fork(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return True if a new Python would start with the settings of the server's."""
    names = {name for name in (*env, *_environment()) if name.startswith(("PYTHON", "LANG", "LC_", "OTEL_"))}
    return command[0] == "-m" and all(env.get(name) == _environment().get(name) for name in names)


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
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


def _next_order(orders: socket.socket) -> dict[str, Any]:
    """Wait for orders. Return each in a process of its own, which is to carry it out."""
    while True:
        order, files, *_ = socket.recv_fds(orders, _ORDER_BYTES, 2)
        if not order:
            os._exit(0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            orders.close()
            _keep(*files)
            return dict(json.loads(order))
        for file in files:
            os.close(file)


def _keep(keeper: int, output: int) -> None:
    """Return in a fork with this output. Report its process id, and its exit code once it has ended."""
    if (pid := os.fork()) == 0:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(keeper)
        os.close(output)
        return
    os.dup2(1, 2)  # Whoever reads the tests' errors should not wait for this process.
    os.close(output)
    os.write(keeper, str(pid).encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):  # The tests are over.
        os.write(keeper, str(code).encode())
    os._exit(0)


if __name__ == "__main__":
    for name in LIBRARIES.split():
        importlib.import_module(name)
    gc.freeze()  # The collector would look at all of it again in each fork, and copy its memory.
    order = _next_order(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    sys.path.insert(0, order["cwd"])
    _, module, *sys.argv[1:] = order["command"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
