"""The local environment: Redis, the platform, a certificate authority, and credhook's own commands.

It drives credhook through its command line alone, as an operator would.
"""

import os
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from credhook.sandbox.local.local_redis import free_port, local_redis

#: Everything that a play writes is below this folder of the current directory, and is removed with its end.
SCENE: Final = Path(".credhook")

#: The command line of this installation, whatever the current directory holds.
CREDHOOK: Final = (sys.executable, "-P", "-m", "credhook")

#: Seconds until a process must answer, and until it must have ended.
START_TIMEOUT, STOP_TIMEOUT = 30.0, 12.0


class CannotStart(Exception):
    """A part did not start, or ended before its time; the message names it and the end of its log."""


@dataclass
class LocalEnvironment:
    """What a play has to work with.

    Attributes:
        folder: where its files are.
        environment: what every process is given; the same variables as in production.
        sandbox_url: the platform; empty if it is not played here.
        receiver_url: the receiver, https if the platform is played here.
        ca: PEM file of the authority that signed the receiver's certificate.
        logs: process name → its log.
    """

    folder: Path
    environment: dict[str, str]
    sandbox_url: str
    receiver_url: str
    ca: Path
    logs: dict[str, Path] = field(default_factory=dict)
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, name: str, *command: str, **settings: str) -> None:
        """Start a process, with these settings beside everybody's; its output goes into a log of its own."""
        self.logs[name] = log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            self._processes[name] = subprocess.Popen(  # noqa: S603  The commands are the Procfile's and our own.
                command,
                env=self.environment | settings,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches us alone, and we end the others in order.
            )

    def run(self, *command: str) -> str:
        """Run a command to its end; what it printed.

        Raises:
            CannotStart: it failed.
        """
        done = subprocess.run(  # noqa: S603  As above.
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=START_TIMEOUT
        )
        if done.returncode:
            raise CannotStart(f"{' '.join(command[-3:])} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def wait_for(self, name: str, url: str) -> None:
        """Return once the process answers there with 200.

        Raises:
            CannotStart: it ended, or took longer than `START_TIMEOUT`.
        """
        deadline = time.monotonic() + START_TIMEOUT
        trust = ssl.create_default_context(cafile=str(self.ca))
        with httpx.Client(verify=trust, timeout=2.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                self.check()
                try:
                    if client.get(url).status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
        raise CannotStart(f"{name} does not answer at {url}: {self.tail(name)}")

    def write_environment(self) -> Path:
        """A file that a shell can read, with what points the other commands at this play."""
        lines = [
            f"{name}={shlex.quote(value)}\n"
            for name, value in self.environment.items()
            if name.startswith(("CREDHOOK_", "REDIS_"))
        ]
        path = self.folder / "env"
        path.write_text("".join(lines))
        return path.relative_to(Path.cwd())

    def check(self, *, but: str = "") -> None:
        """Return if every process that was started still runs, `but` for one that may end.

        Raises:
            CannotStart: another has ended.
        """
        for name, process in self._processes.items():
            if process.poll() is not None and name != but:
                raise CannotStart(f"{name} ended with {process.returncode}: {self.tail(name)}")

    def tail(self, name: str) -> str:
        """The end of a process's log."""
        return self.logs[name].read_text(errors="replace")[-800:].strip() or "it has logged nothing"

    def exit_code(self, name: str) -> int | None:
        """What a process has ended with; `check` does not miss it from then on. None while it runs, and once told."""
        process = self._processes.get(name)
        code = process.poll() if process else None
        if code is not None:
            del self._processes[name]
        return code

    def end(self, name: str) -> None:
        """End a process, if it still runs: ask, wait, insist."""
        if name in self._processes:
            _end([self._processes[name]])
            del self._processes[name]  # Not before: who is interrupted here has `stop` end it.

    def stop(self) -> None:
        """End every process: ask all, wait, insist."""
        _end(self._processes.values())
        self._processes.clear()


@contextmanager
def started(
    *,
    own_handlers: bool = False,
    sandbox: Sequence[str] | None = ("--duplicate", "2"),
    port: int = 0,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[LocalEnvironment]:
    """Start the local environment: Redis and the platform run, the rest can be started; afterwards nothing is left.

    With `own_handlers` credhook's settings are taken over from the environment, where ours does not need its own;
    otherwise only the handler that logs is loaded, whatever is installed. `sandbox` is its options; None leaves it out,
    and the platform is the one that the environment names. `port` is the receiver's, 0 for a free one.

    Raises:
        NoRedis: there is no Redis to be found.
        CannotStart: the sandbox did not start.
    """
    with ExitStack() as stack:
        try:
            SCENE.mkdir(exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="play-", dir=SCENE)).absolute()
        except OSError as error:
            raise CannotStart(f"{SCENE} cannot be written here: {error.strerror}") from error
        stack.callback(_remove_if_empty, SCENE)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        redis_url = environ.get("REDIS_URL") or stack.enter_context(
            local_redis(folder, options=("--maxmemory", "512mb"))
        )
        sandbox_port, receiver_port = free_port(), port or free_port()
        ca = _make_certificates(folder)
        scheme = "http" if sandbox is None else "https"
        local = LocalEnvironment(
            folder=folder,
            environment={
                **{name: value for name, value in environ.items() if own_handlers or not name.startswith("CREDHOOK_")},
                **({} if own_handlers else {"CREDHOOK_HANDLERS": "credhook.worker.handlers.logging_handler"}),
                # The commands of the Procfile are those of this installation.
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}",
                "REDIS_URL": redis_url,
                "HOST": "127.0.0.1",
                "PORT": str(receiver_port),
                # A queue of its own: with a shared REDIS_URL, nobody else's worker takes part in the play.
                "CREDHOOK_QUEUE": f"play-{folder.name.removeprefix('play-')}",
                "PYTHONUNBUFFERED": "1",
            },
            sandbox_url="" if sandbox is None else f"http://127.0.0.1:{sandbox_port}",
            receiver_url=f"{scheme}://localhost:{receiver_port}",
            ca=ca,
        )
        stack.callback(local.stop)
        if sandbox is not None:
            _play_platform(local, sandbox_port, sandbox)
        yield local


def _play_platform(local: LocalEnvironment, port: int, options: Sequence[str]) -> None:
    """Start the sandbox, and have every other process work with it."""
    local.environment |= {
        "CREDHOOK_TLS_CERTFILE": str(local.folder / "receiver.pem"),
        "CREDHOOK_PUBLIC_URL": f"{local.receiver_url}/webhooks",
        "CREDHOOK_SANDBOX_URL": local.sandbox_url,
    }
    local.start("sandbox", *CREDHOOK, "sandbox", "--port", str(port), "--ca", str(local.ca), *options)
    local.wait_for("sandbox", f"{local.sandbox_url}/sandbox/deliveries")
    printed = local.logs["sandbox"].read_text().splitlines()  # What points the others at it, before all else.
    local.environment |= dict(line.split("=", 1) for line in printed if line.startswith("CREDHOOK_"))


def _make_certificates(folder: Path) -> Path:
    """A throw-away authority, and a certificate of it for the receiver; the authority's PEM.

    Raises:
        CannotStart: what makes them is not installed.
    """
    try:
        import trustme  # noqa: PLC0415  Of the extra that only this needs.
    except ImportError:
        raise CannotStart("trustme is not installed: pip install 'credhook[local]'") from None
    authority = trustme.CA()
    ca = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(folder / "receiver.pem")
    )
    return ca


def _end(processes: Iterable["subprocess.Popen[bytes]"]) -> None:
    """End them with their children, whom each of them ends in order if it can."""
    processes = list(processes)
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # Another play is on.
        folder.rmdir()
