"""Our commands as processes of their own, as an operator runs them."""

import os
import re
import signal
import socket
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx

from credhook.sandbox.local.environment import free_port
from support import plain
from support.process.commands import start_session
from support.process.growing_files import whole
from support.receiver.signing import SECRET
from support.waiting import until


class Process:
    """One of our commands, and its log. `python` may be the interpreter of another environment."""

    def __init__(
        self,
        log: Path,
        *command: str,
        environment: dict[str, str],
        python: str = sys.executable,
        pass_fds: Collection[int] = (),
    ) -> None:
        self.log = log
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CREDHOOK_", "REDIS_"))}
        with log.open("ab") as output:
            self.process = start_session(
                command, env=kept | environment, cwd=log.parent, output=output, python=python, pass_fds=pass_fds
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()

    def kill(self) -> None:
        """kill -9 of it and all that it has started, as when the machine dies."""
        self._signal_all(signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        """SIGSTOP: it stalls with all that it has started; their connections stay."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        """Send it to the process and to all of its session: workers have process groups of their own."""
        self.process.send_signal(number)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:
                    os.kill(int(stat.parent.name), number)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def answers(self, url: str, **options: Any) -> bool:
        """Return True once it answers there with success. It must not end before."""
        assert self.process.poll() is None, self.text
        try:
            return plain.get(url, **options).is_success
        except httpx.TransportError:
            return False

    @property
    def text(self) -> str:
        """What it has said, in whole lines as long as it speaks."""
        over = self.process.poll() is not None
        text = self.log.read_text(errors="replace")
        return text if over else whole(text)


def children(process: Process) -> list[int]:
    """The processes that it has started and that are there, or were until just now."""
    pid = process.process.pid
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started from any of its threads."""
    found = (path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for words in found for child in words]


def runs(pid: int) -> bool:
    """Whether the process is there, and not only its entry."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def nobody_listens(port: int) -> bool:
    """Return True if a connection to this port on loopback is refused."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def running(log: Path, name: str, *options: str, environment: dict[str, str]) -> Process:
    """Start one of our commands, to be killed at the end of the block."""
    return Process(log, "-m", f"credhook.{name}", *options, environment=environment)


class Executed(Process):
    """The words of a file of ours as they stand there, with `credhook` on the PATH."""

    def __init__(self, log: Path, *words: str, environment: dict[str, str]) -> None:
        path = f"{Path(sys.executable).parent}:{environment.get('PATH', os.environ['PATH'])}"
        self.environment = environment | {"PATH": path}
        program = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        super().__init__(log, "-c", program, *words, environment=self.environment)


class Receiver(Process):
    """`credhook receiver` on a free port."""

    def __init__(self, folder: Path, redis_url: str, *, options: tuple[str, ...] = (), **settings: str) -> None:
        self.port = free_port()
        self.url = f"http{'s' * ('CREDHOOK_TLS_CERTFILE' in settings)}://127.0.0.1:{self.port}/webhooks"
        environment = {"REDIS_URL": redis_url, "PORT": str(self.port), "CREDHOOK_WEBHOOK_SECRETS": SECRET} | settings
        super().__init__(folder / "receiver.log", "-m", "credhook.receiver", *options, environment=environment)
        alive = self.url.replace("/webhooks", "/healthz")
        until(lambda: self.answers(alive, verify=False), what="the receiver's /healthz")


receiver = Receiver


class Platform(Process):
    """`credhook sandbox` on a free port."""

    def __init__(self, folder: Path, *options: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = ["-m", "credhook.sandbox", "--port", str(port), *options]
        super().__init__(folder / "sandbox.log", *arguments, environment={})
        until(lambda: self.answers(f"{self.url}/sandbox/deliveries"), what="the sandbox")
        #: What points a worker at it, which it prints when it starts.
        self.environment = dict(re.findall(r"^(CREDHOOK_\w+)=(.*)$", self.text, re.MULTILINE))

    def make(self, event_type: str = "openid4vc.issuance.completed", **more: object) -> str:
        """Make something happen there; the id of the issuance or presentation."""
        answer = plain.post(f"{self.url}/sandbox/events", json={"eventType": event_type, "count": 1, **more})
        return str(answer.raise_for_status().json()["data"][0]["resourceId"])

    def clear(self) -> None:
        """Switch all faults off."""
        plain.delete(f"{self.url}/sandbox/faults").raise_for_status()

    def faults(self, **switched: object) -> None:
        plain.post(f"{self.url}/sandbox/faults", json=switched).raise_for_status()


platform = Platform
