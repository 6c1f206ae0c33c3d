"""The stub as a process, what it has seen, and what it could do."""

import http.client
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import cores, generator
from bench.deliveries import Deliveries
from bench.process import Process
from bench.work import stub

from credhook.sandbox.local.local_redis import free_port

_STUB: Final = Path(stub.__file__)

#: Seconds until it must answer.
_START_TIMEOUT: Final = 15.0

_REQUEST: Final = "GET /me-creds/api/credentials/iss_%024x HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n\r\n"


class NotAnswering(Exception):
    """The stub did not start."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the API was asked.

    Attributes:
        requests: how many.
        resources: how many different ids.
        answered: how many of the requests were answered.
        seconds: from the first request to the last answer.
    """

    requests: int
    resources: int
    answered: int
    seconds: float


class Api(Process):
    """The stub.

    Attributes:
        url: its root.
    """

    def __init__(self, latency: float, log: Path, on: frozenset[int]) -> None:
        """`latency`: seconds until it answers."""
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        super().__init__((sys.executable, _STUB, str(self._port), str(latency)), {}, log, folder=log.parent, on=on)

    def await_answer(self) -> None:
        """Return once it answers.

        Raises:
            NotAnswering: it did not.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        while self.lives and time.monotonic() < deadline:
            try:
                self.seen()
            except OSError:
                self._connection.close()
                time.sleep(0.02)
            else:
                return
        raise NotAnswering(self.last_words)

    def seen(self) -> Seen:
        """What it was asked until now."""
        self._connection.request("GET", stub.SEEN.decode())
        return Seen(**json.loads(self._connection.getresponse().read()))

    def stop(self) -> None:
        """End it."""
        self._connection.close()
        super().stop()

    def capacity(self, folder: Path, seconds: float) -> float:
        """Requests that it answers per second when nothing else is to be done, as far as our generator can ask."""
        path, count = folder / "requests", round(seconds * 250_000)
        path.write_bytes(b"".join((_REQUEST % number).encode() for number in range(count)))
        requests = Deliveries(path, path.stat().st_size // count, 0, count, 0)
        with cores.on(cores.SERVER):
            sent = generator.drive(self._port, requests, rate=None, seconds=seconds, connections=64, status=200)
        return len(sent.latencies) / sent.seconds


@contextmanager
def answering(latency: float, folder: Path, *, on: frozenset[int] = cores.LOAD) -> Iterator[Api]:
    """Run the stub on a free port, answering after `latency` seconds, on the cores `on`.

    Raises:
        NotAnswering: see there.
    """
    api = Api(latency, folder / "api.log", on)
    try:
        api.await_answer()
        yield api
    finally:
        api.stop()
