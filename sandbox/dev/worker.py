"""The worker around the author's modules: started, ended in order, and started anew."""

from collections.abc import Sequence
from typing import Final

from credhook.sandbox.dev.tail import Tail
from credhook.sandbox.local.environment import CREDHOOK, LocalEnvironment

_NAME: Final = "worker"
#: Settings of this worker alone. A handler that is under way when its file is saved gets five seconds to finish; then
#: the event is handed back, and the new code has it.
_SETTINGS: Final = {"CREDHOOK_DEV": "1", "CREDHOOK_LOG": "json", "CREDHOOK_GRACE": "5"}


class Worker:
    """One worker at a time; what it logs is read line by line."""

    def __init__(self, local: LocalEnvironment, modules: Sequence[str]) -> None:
        self._local = local
        self._settings = _SETTINGS | {"CREDHOOK_HANDLERS": ",".join(modules)}
        self._tail: Tail | None = None

    def start(self) -> None:
        """Start it, with the modules as they are now."""
        self._local.start(_NAME, *CREDHOOK, "worker", **self._settings)
        self._tail = Tail(self._local.logs[_NAME])

    def lines(self) -> list[str]:
        """What it has logged since this was last asked."""
        return self._tail.lines() if self._tail else []

    def exit_code(self) -> int | None:
        """What it has ended with, once; None while it runs."""
        return self._local.exit_code(_NAME)

    def end(self) -> list[str]:
        """Let it finish what is under way and end; what it logged until then."""
        self._local.end(_NAME)
        rest = self._tail.close() if self._tail else []
        self._tail = None
        return rest
