"""Which of the author's files have been saved."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from watchfiles import PythonFilter, watch

from credhook.sandbox.local.environment import CannotStart

#: Milliseconds for which a burst of changes is waited out, and in which the thread hears of its end.
_BURST: Final = 400
_HEARS: Final = 500


class Saves:
    """Changes of Python files since they were last asked for."""

    def __init__(self) -> None:
        self._changes: SimpleQueue[set[Path] | Exception] = SimpleQueue()

    def put(self, change: "set[Path] | Exception") -> None:
        """Take in what the system tells of."""
        self._changes.put(change)

    def taken(self) -> list[Path]:
        """The files that have been saved; then they count as read.

        Raises:
            CannotStart: the system does not tell of changes any more.
        """
        files = set[Path]()
        while True:
            try:
                change = self._changes.get_nowait()
            except Empty:
                return sorted(files)
            if isinstance(change, Exception):
                raise CannotStart(f"files cannot be watched: {change}; WATCHFILES_FORCE_POLLING=1 may help")
            files |= change


def _is_test(path: Path) -> bool:
    """Whether only pytest reads it: no handler has changed then."""
    return path.name == "conftest.py" or path.stem.startswith("test_") or path.stem.endswith("_test")


@contextmanager
def watched(folders: Sequence[Path]) -> Iterator[Saves]:
    """Watch these folders and files, with what is below them, for as long as this lasts."""
    saves, end = Saves(), threading.Event()
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # It counts changes.

    def listen() -> None:
        try:
            for changes in watch(
                *folders,
                watch_filter=PythonFilter(),
                debounce=_BURST,
                rust_timeout=_HEARS,
                stop_event=end,
                raise_interrupt=False,
            ):
                saves.put({path for path in (Path(each) for _, each in changes) if not _is_test(path)})
        except Exception as error:  # noqa: BLE001  It is told where somebody listens.
            saves.put(error)

    if folders:
        threading.Thread(target=listen, daemon=True, name="saves").start()
    try:
        yield saves
    finally:
        end.set()
