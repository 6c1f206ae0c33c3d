"""A contender's server as a process, and what it costs."""

import http.client
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import cores
from bench.deliveries import SECRET
from bench.environments import ROOT
from bench.field import Contender

from sandbox.local_redis import free_port

#: Seconds until a server must answer.
_START_TIMEOUT: Final = 30.0

#: Seconds that a server gets to end.
_GRACE: Final = 15.0

_PROC: Final = Path("/proc")


class NotServing(Exception):
    """A contender's server did not start; the message holds the end of its log."""


class Server:
    """A server that is running.

    Attributes:
        port: on loopback.
    """

    def __init__(self, contender: Contender, redis_url: str, log: Path) -> None:
        self.port = free_port()
        self._log = log
        ours = ("CREDHOOK_", "REDIS_", "PYTHON")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        told = {
            "PORT": str(self.port),
            "REDIS_URL": redis_url,
            "UVICORN_PORT": str(self.port),
            "WEBHOOK_SECRET": SECRET,
            "CREDHOOK_WEBHOOK_SECRETS": SECRET,
            "NODE_ENV": "production",
        }
        command = [str(part) for part in contender.command()]
        # To a file, as production has it: our receiver logs every event at its default level.
        with log.open("wb") as output, cores.on(cores.SERVER):
            self._process = subprocess.Popen(
                command, env=kept | told | contender.settings, stdout=output, stderr=output, cwd=ROOT
            )

    def await_answer(self) -> None:
        """Return once it answers anything at all.

        Raises:
            NotServing: see there.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline and self._process.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            try:
                connection.request("GET", "/none")
                connection.getresponse().read()
            except OSError:
                time.sleep(0.02)
            else:
                return
            finally:
                connection.close()
        raise NotServing(self._log.read_text(errors="replace")[-1_000:] or "it did not answer")

    def cpu_seconds(self) -> float | None:
        """Processor time that it has used, in user and kernel mode; None where the system does not tell."""
        try:
            # The second field, the program's name, may hold spaces; the figures follow its closing bracket.
            fields = (_PROC / str(self._process.pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_megabytes(self) -> float | None:
        """The most resident memory that it ever had, in MiB; None where the system does not tell."""
        try:
            status = (_PROC / str(self._process.pid) / "status").read_text()
        except OSError:
            return None
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) / 1_024

    def stop(self) -> None:
        """SIGTERM, and kill -9 if that is not heard."""
        self._process.terminate()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def serving(contender: Contender, redis_url: str, folder: Path) -> Iterator[Server]:
    """Run a contender's server on a free port.

    Raises:
        NotServing: see there.
    """
    server = Server(contender, redis_url, folder / "server.log")
    try:
        server.await_answer()
        yield server
    finally:
        server.stop()
