"""Ctrl-C, SIGTERM and a closed terminal: whatever was started is ended in order on the way out."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: A closed terminal ends what runs as Ctrl-C does.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Ctrl-C or SIGTERM: everything is taken down on the way out."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn the first signal into `Stopped`, and ignore the next ones while everything is being ended."""

    def stop(*_: object) -> None:
        for name in _SIGNALS:
            signal.signal(name, signal.SIG_IGN)
        raise Stopped

    before = {name: signal.signal(name, stop) for name in _SIGNALS}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
