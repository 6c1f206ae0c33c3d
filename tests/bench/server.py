"""A competitor's server as a process."""

import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.competitors import Competitor
from bench.deliveries import SECRET
from bench.environments import ROOT
from bench.process import Process

from credhook.sandbox.local.local_redis import free_port

#: Seconds until a server must answer.
_START_TIMEOUT: Final = 30.0


class NotServing(Exception):
    """A competitor's server did not start; the message holds the end of its log."""


class Server(Process):
    """A server that is running.

    Attributes:
        port: on loopback.
    """

    def __init__(self, competitor: Competitor, redis_url: str, log: Path) -> None:
        self.port = free_port()
        told = {
            "PORT": str(self.port),
            "REDIS_URL": redis_url,
            "UVICORN_PORT": str(self.port),
            "WEBHOOK_SECRET": SECRET,
            "CREDHOOK_WEBHOOK_SECRETS": SECRET,
            "NODE_ENV": "production",
        }
        super().__init__(competitor.command(), told | competitor.settings, log, folder=ROOT)

    def await_answer(self) -> None:
        """Return once it answers anything at all.

        Raises:
            NotServing: see there.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline and self.lives:
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
        raise NotServing(self.last_words or "it did not answer")


@contextmanager
def serving(competitor: Competitor, redis_url: str, folder: Path) -> Iterator[Server]:
    """Run a competitor's server on a free port.

    Raises:
        NotServing: see there.
    """
    server = Server(competitor, redis_url, folder / "server.log")
    try:
        server.await_answer()
        yield server
    finally:
        server.stop()
