"""Themes of checks, run side by side, none of which can keep the others or the whole waiting."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from credhook.ops.finding import Finding, fail

#: Seconds that a theme may take: more than any one of its questions does, which give up by themselves.
PATIENCE: Final = 20.0


class Theme(NamedTuple):
    """Checks that build on each other.

    Attributes:
        names: of all its checks, in the order in which they are shown.
        run: makes them, and yields a finding as soon as there is one. It may block.
        late: what to look at where it does not end.
    """

    names: tuple[str, ...]
    run: Callable[[], Iterable[Finding]]
    late: str


def examine(themes: Sequence[Theme], patience: float = PATIENCE) -> list[Finding]:
    """A finding for each check, its first, in order; those that are not done in so many seconds have failed.

    A thread that is stuck in a question, as to a name server, is left behind: whoever calls this should soon end.
    """
    found: queue.SimpleQueue[tuple[int, Finding | None]] = queue.SimpleQueue()
    for number, theme in enumerate(themes):
        threading.Thread(target=_run, args=(number, theme, found), daemon=True).start()
    running, deadline = set(range(len(themes))), time.monotonic() + patience
    findings: dict[str, Finding] = {}
    broken: dict[int, str] = {}
    while running:
        try:
            number, finding = found.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            broken |= dict.fromkeys(running, f"no answer within {patience:g} s")
            break
        if finding is None:
            running.discard(number)
        else:
            findings.setdefault(finding.name, finding)
    return list(_in_order(themes, findings, broken))


def _run(number: int, theme: Theme, found: "queue.SimpleQueue[tuple[int, Finding | None]]") -> None:
    try:
        for finding in theme.run():
            found.put((number, finding))
    except Exception as error:  # noqa: BLE001  A defect of ours should cost its own theme and no other.
        for name in theme.names:
            found.put((number, fail(name, f"the check itself has failed ({type(error).__name__})", "report it")))
    finally:
        found.put((number, None))


def _in_order(themes: Sequence[Theme], findings: dict[str, Finding], broken: dict[int, str]) -> Iterator[Finding]:
    for number, theme in enumerate(themes):
        for name in theme.names:
            if name in findings:
                yield findings[name]
            elif number in broken:
                yield fail(name, broken[number], theme.late)
