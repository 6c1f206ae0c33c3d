"""The machine: which process runs on which core, what a process costs, and what the figures depend on. Linux only."""

import http.client
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench.environments import ROOT
from redis import Redis

from credhook.sandbox.local.environment import find_server

_OURS: Final = sorted(os.sched_getaffinity(0))

#: The server under test has one core to itself. The load and Redis share the others.
ALL: Final = frozenset(_OURS)
SERVER: Final = frozenset(_OURS[:1])
LOAD: Final = frozenset(_OURS[1:] or _OURS)

#: Redis rewrites its append-only file when it has doubled. Here it never does, so that no run meets it by chance.
NO_REWRITES: Final = ("--auto-aof-rewrite-percentage", "0")

_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 15.0

#: Prefixes of variables that are meant for us, not for the measured process.
_NOT_HANDED_ON: Final = ("CREDHOOK_", "REDIS_", "PYTHON")

_PROC: Final = Path("/proc")


class RunFailed(Exception):
    """A run gave no figures that mean anything. The message says why."""


@contextmanager
def on(cores: frozenset[int]) -> Iterator[None]:
    """Run the block, and every process that it starts, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Process:
    """A process under measurement, with its children."""

    def __init__(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path, cores: frozenset[int] = SERVER
    ) -> None:
        self._log = log
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_HANDED_ON)}
        # The output goes to a file, as in production: credhook logs every event at its default level.
        with log.open("wb") as output, on(cores):
            self._process = subprocess.Popen(
                [str(part) for part in command],
                env={**kept, **environment},
                stdout=output,
                stderr=output,
                cwd=ROOT,
                process_group=0,  # So that children that outlive it can be killed.
            )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-1_000:]

    def await_answer(self, port: int) -> None:
        """Return once the process answers HTTP, with any status.

        Raises:
            RunFailed: it did not answer in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.lives:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("GET", "/none")
                connection.getresponse().read()
            except OSError:
                time.sleep(0.02)
            else:
                return
            finally:
                connection.close()
        raise RunFailed(self.last_words or "it did not answer")

    def cpu_seconds(self) -> float:
        """Return the processor time of the process and its children, ended children included."""
        return self._sum(lambda pid: sum(map(int, _stat(_PROC / str(pid))[11:15]))) / os.sysconf("SC_CLK_TCK")

    def peak_megabytes(self) -> float:
        """Return the most resident memory that the process and its present children ever had, in MiB."""
        return self._sum(_peak) / 1_024

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the process does not end."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _sum(self, figure: Any) -> int:
        children: dict[int, list[int]] = {}
        for folder in _PROC.glob("[0-9]*"):
            with suppress(OSError):  # It has ended since it was listed.
                children.setdefault(int(_stat(folder)[1]), []).append(int(folder.name))
        family, total = [self._process.pid], 0
        for member in family:
            family += children.get(member, ())
            with suppress(OSError):
                total += figure(member)
        return total


def _stat(process: Path) -> list[str]:
    """Return the fields after the second, which is the program's name in brackets and may hold spaces."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _peak(pid: int) -> int:
    status = (_PROC / str(pid) / "status").read_text().splitlines()
    return next((int(line.split()[1]) for line in status if line.startswith("VmHWM:")), 0)


class Meter:
    """The processor time that a process and its Redis use from now on."""

    def __init__(self, process: Process, redis: Redis) -> None:
        self._process, self._redis = process, redis
        self._before = self._now()

    def costs(self, count: int) -> dict[str, Any]:
        """Return microseconds per event of the process (`cpu`) and of Redis (`redis`), and the peak memory in MiB."""
        cpu, redis = ((now - before) / count * 1e6 for now, before in zip(self._now(), self._before, strict=True))
        return {"cpu": cpu, "redis": redis, "peak": self._process.peak_megabytes()}

    def _now(self) -> tuple[float, float]:
        used: Any = self._redis.info("cpu")
        return self._process.cpu_seconds(), float(used["used_cpu_user"] + used["used_cpu_sys"])


def here(packages: Sequence[str], *others: str) -> dict[str, str]:
    """Return what all figures depend on: a name and a line for people."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = next(
        (
            line.partition(":")[2]
            for line in (_PROC / "cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    node = f"Node {_said('node', '--version')}" if shutil.which("node") else "no Node"
    redis = next((word[2:] for word in _said(find_server(), "--version").split() if word.startswith("v=")), "unknown")
    load = ", ".join(map(str, sorted(LOAD)))
    return {
        "commit": _said("git", "describe", "--always", "--dirty=, and changes beside it") or "unknown",
        "machine": f"{os.cpu_count()} cores of {processor.strip() or platform.machine()}, {memory:.0f} GiB",
        "neighbours": f"load average {os.getloadavg()[0]:.1f} before the start; above 0.5, others are in the figures",
        "cores": f"server pinned to core {_OURS[0]}, load generator and Redis to core {load}",
        "software": ", ".join(
            (
                f"Python {platform.python_version()}",
                *(f"{name} {version(name)}" for name in packages),
                *others,
                node,
                f"Redis {redis}",
            )
        ),
        "logs": "to a file: credhook's at its default level, which names every event; the others' at warning",
    }


def _said(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
