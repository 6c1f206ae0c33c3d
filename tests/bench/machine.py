"""The machine: environments of the peers, which process runs on which core, and what a process costs. Linux only."""

import http.client
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

import click
from redis import Redis

from credhook.sandbox.local.environment import find_server

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
PROGRAMS: Final = HERE / "programs"

#: Everything that the benchmark writes. Git ignores it.
SCRATCH: Final = ROOT / ".credhook" / "bench"

#: The server under test has one core to itself. The load and Redis share the others.
_OURS: Final = sorted(os.sched_getaffinity(0))
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


class Missing(Exception):
    """A tool is missing that the benchmark does not install. The message says how to install it."""


def say(line: str) -> None:
    """Tell the user what happens. Figures go to standard output."""
    click.echo(line, err=True)


def python(lock: Path) -> Path:
    """Return the interpreter of the environment that a lock file describes."""
    interpreter = SCRATCH / lock.stem / "bin" / "python"

    def install(folder: Path) -> list[str]:
        venv.create(folder, with_pip=True, clear=True)
        return [str(interpreter), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock)]

    _installed(SCRATCH / lock.stem, lock, install)
    return interpreter


def node(program: Path) -> Path:
    """Return the program's copy beside its packages, where Node looks for them."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise Missing("node or npm is missing: install Node 20 or newer (Debian: apt install nodejs npm)")
    lock = PROGRAMS / "package-lock.json"

    def install(folder: Path) -> list[str]:
        for name in ("package.json", lock.name):
            shutil.copy(PROGRAMS / name, folder)
        # Not `npm ci`: it refuses a lock that lacks the optional packages of other systems.
        return ["npm", "install", "--loglevel", "error", "--no-audit", "--no-fund"]

    _installed(SCRATCH / "node", lock, install)
    return Path(shutil.copy(program, SCRATCH / "node"))


def _installed(folder: Path, lock: Path, install: Callable[[Path], list[str]]) -> None:
    """Prepare the folder and run the command that `install` returns, unless the lock was installed before."""
    stamp, digest = folder / ".installed", sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    say(f"installing {folder.relative_to(ROOT)} (once)")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(install(folder), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{folder.relative_to(ROOT)} could not be installed: {done.stderr.strip()[-500:]}")
    stamp.write_text(digest)


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
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        log: Path,
        cores: frozenset[int] = SERVER,
        folder: Path = ROOT,
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
                cwd=folder,
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
            with suppress(OSError), closing(connection):
                connection.request("GET", "/none")
                connection.getresponse().read()
                return
            time.sleep(0.02)
        raise RunFailed(self.last_words or "it did not answer")

    def await_output(self, text: str) -> None:
        """Return once the process has printed the text.

        Raises:
            RunFailed: it did not print it in time.
        """
        deadline, lives = time.monotonic() + _START_SECONDS, True
        while text not in self._log.read_text(errors="replace"):
            if not lives or time.monotonic() > deadline:
                raise RunFailed(self.last_words or "it printed nothing")
            time.sleep(0.002)
            lives = self.lives

    def cpu_seconds(self) -> float:
        """Return the processor time of the process and its children, ended children included."""
        return self._sum(lambda pid: sum(map(int, _stat(_PROC / str(pid))[11:15]))) / os.sysconf("SC_CLK_TCK")

    def peak_megabytes(self) -> float:
        """Return the most resident memory that the process and its present children ever had, in MiB."""
        return self._sum(_peak) / 1_024

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Send SIGTERM, and SIGKILL if the process does not end."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _sum(self, figure: Callable[[int], int]) -> int:
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
    peak = re.search(r"^VmHWM:\s+(\d+)", (_PROC / str(pid) / "status").read_text(), re.MULTILINE)
    return int(peak[1]) if peak else 0


class Meter:
    """The processor time that a process and its Redis use from now on, and what Redis writes to its file."""

    def __init__(self, process: Process, redis: Redis) -> None:
        self._process, self._redis = process, redis
        self._before = self._now()

    def costs(self, count: int) -> dict[str, Any]:
        """Return what an event costs, and what the process takes.

        An event costs microseconds of the process (`cpu`) and of Redis (`redis`), and bytes that Redis has `written`.
        The process has a `peak` of memory in MiB, and `connections` to Redis.
        """
        cpu, redis, written = ((now - before) / count for now, before in zip(self._now(), self._before, strict=True))
        clients: Any = self._redis.info("clients")
        own = {"peak": self._process.peak_megabytes(), "connections": clients["connected_clients"] - 1}
        return {"cpu": cpu * 1e6, "redis": redis * 1e6, "written": written, **own}

    def _now(self) -> tuple[float, float, int]:
        used: Any = self._redis.info()
        redis = float(used["used_cpu_user"] + used["used_cpu_sys"])
        return self._process.cpu_seconds(), redis, used["aof_current_size"]


def here(*packages: str) -> dict[str, str]:
    """Return what all figures depend on: a name and a line for people."""

    def said(*command: str) -> str:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    model = re.search(r"model name\s*: (.*)", (_PROC / "cpuinfo").read_text())
    interpreter = f"Python {platform.python_version()} in {sys.base_prefix}"
    software = [interpreter, *(f"{name} {version(name)}" for name in packages)]
    server = said(find_server(), "--version").split()  # Such as "Valkey server v=9.1.2".
    software.append(f"{server[0]} {server[2].removeprefix('v=')}")
    if shutil.which("node"):
        software.append(f"Node {said('node', '--version')}")
    return {
        "commit": said("git", "describe", "--always", "--dirty=, and changes beside it"),
        "machine": f"{os.cpu_count()} cores of {model[1] if model else platform.machine()}; the server has one of them",
        "neighbours": f"load average {os.getloadavg()[0]:.1f} before the start; above 0.5, others are in the figures",
        "software": ", ".join(software),
    }
