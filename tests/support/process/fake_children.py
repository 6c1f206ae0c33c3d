"""Children that are no processes, and a clock on which they live: what a supervisor does, without waiting for it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count


class Clock:
    """Time that passes only in `sleep`, which runs the planned calls on its way."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._planned: list[tuple[float, Callable[[], object]]] = []

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float, happens: Callable[[], object]) -> None:
        self._planned.append((self.now + seconds, happens))

    def sleep(self, seconds: float) -> None:
        assert self.now < 100_000, "it never ends"
        until = self.now + seconds
        while due := [one for one in self._planned if one[0] <= until]:
            first = min(due, key=lambda one: one[0])
            self._planned.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
        self.now = max(self.now, until)


class Child:
    """It ends when told to, after so many seconds; by itself with a code, if it is planned so."""

    pids = count(1)

    def __init__(self, clock: Clock, *, drains_for: float = 0.0) -> None:
        self.pid = next(self.pids)
        self.born = clock.now
        self.signals: list[signal.Signals] = []
        self._clock = clock
        self._drains_for = drains_for
        self._code: int | None = None

    def ends(self, code: int) -> None:
        self._code = code if self._code is None else self._code

    def poll(self) -> int | None:
        return self._code

    def wait(self) -> int:
        assert self._code is not None, "it would never return"
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if number == signal.SIGTERM:
            self._clock.after(self._drains_for, lambda: self.ends(0))

    def kill(self) -> None:
        self.ends(-signal.SIGKILL)


@contextmanager
def own_signals() -> Iterator[None]:
    """Restore the handlers of the signals that end a process."""
    before = {one: signal.signal(one, signal.SIG_DFL) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
