"""A Redis that dies and comes back, or has another setting for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from redis import Redis

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

    @property
    def file(self) -> Path:
        """The append-only file that it writes to."""
        return max(self._folder.rglob("*.aof"), key=lambda file: file.name.endswith(".incr.aof"))

    def kill(self) -> None:
        self._server.kill()
        self._server.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def configured(client: Redis, name: str, value: str) -> Iterator[None]:
    """Another setting of Redis, for the length of the block."""
    before: Any = client.config_get(name)
    client.config_set(name, value)
    try:
        yield
    finally:
        client.config_set(name, before[name])
