"""A process under measurement, and what it costs, its children included."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from bench import cores

#: Seconds that a process gets to end.
_GRACE: Final = 15.0

_PROC: Final = Path("/proc")

#: Beginnings of variables that are meant for us, not for what we measure.
_NOT_HANDED_ON: Final = ("CREDHOOK_", "REDIS_", "PYTHON")


class Process:
    """A process that is running."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        log: Path,
        *,
        folder: Path,
        on: frozenset[int] = cores.SERVER,
    ) -> None:
        """Start it in `folder`, on the cores `on`, with its output in `log`."""
        self._log = log
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_HANDED_ON)}
        # To a file, as production has it: ours logs every event at its default level.
        with log.open("wb") as output, cores.on(on):
            self._process = subprocess.Popen(
                [str(part) for part in command],
                env=kept | dict(environment),
                stdout=output,
                stderr=output,
                cwd=folder,
                process_group=0,  # Children that outlive it can be found.
            )

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-1_000:]

    def cpu_seconds(self) -> float | None:
        """Processor time that it has used, in user and kernel mode; None where the system does not tell."""
        ticks = _told(_ticks, self._process.pid)
        return None if ticks is None else ticks / os.sysconf("SC_CLK_TCK")

    def peak_megabytes(self) -> float | None:
        """The most resident memory that it and its present children ever had, in MiB; None where it is not told."""
        kibibytes = _told(_peak, self._process.pid)
        return None if kibibytes is None else kibibytes / 1_024

    def wait(self, seconds: float) -> int:
        """Its exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        return self._process.wait(seconds)

    def stop(self) -> None:
        """SIGTERM, and kill -9 if that is not heard."""
        self._process.terminate()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _told(figure: Callable[[int], int], pid: int) -> int | None:
    """The sum of a figure over a process and its children; None where the system does not tell."""
    figures = []
    for member in _family(pid):
        with suppress(OSError):  # A child may have ended since it was listed.
            figures.append(figure(member))
    return sum(figures) if figures else None


def _family(pid: int) -> list[int]:
    """The process, its children, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for stat in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):  # It has ended since it was listed.
            children.setdefault(int(_fields(stat)[1]), []).append(int(stat.parent.name))
    family = [pid]
    for member in family:
        family += children.get(member, ())
    return family


def _fields(stat: Path) -> list[str]:
    """What follows the second field: the program's name, which may hold spaces, in brackets."""
    return stat.read_text().rpartition(")")[2].split()


def _ticks(pid: int) -> int:
    """Of processor time, with that of its children which have ended."""
    return sum(map(int, _fields(_PROC / str(pid) / "stat")[11:15]))


def _peak(pid: int) -> int:
    """In KiB; none if it has ended, and waits to be noticed."""
    status = (_PROC / str(pid) / "status").read_text().splitlines()
    return next((int(line.split()[1]) for line in status if line.startswith("VmHWM:")), 0)
