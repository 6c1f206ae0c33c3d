"""A Redis that dies and comes back."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from credhook.sandbox.local.environment import free_port, start_server


class MortalRedis:
    """A Redis that keeps what it confirmed, whatever happens to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.start()

    def start(self) -> None:
        self._server = start_server(self._folder, self._port)

    def send_signal(self, number: signal.Signals) -> None:
        self._server.send_signal(number)

    def kill(self) -> None:
        self._server.kill()
        self._server.wait()


@contextmanager
def mortal_redis(folder: Path) -> Iterator[MortalRedis]:
    redis = MortalRedis(folder)
    try:
        yield redis
    finally:
        redis.kill()
