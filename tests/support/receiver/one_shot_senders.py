"""Senders that make a new connection for each delivery, and count what became of it."""

import itertools
import socket
import ssl
import threading
from collections import Counter
from typing import Self

from support.receiver.refusals import request, signed


class OneShotSenders:
    """Deliver from several threads for the length of the block; `outcomes` counts status lines and errors."""

    #: Without a pause, the senders take the processor from the receivers that start meanwhile.
    PAUSE_SECONDS = 0.01

    def __init__(self, port: int, trust: ssl.SSLContext | None = None, *, host: str = "127.0.0.1") -> None:
        self.outcomes: Counter[str] = Counter()
        self._port, self._trust, self._host = port, trust, host
        self._number = itertools.count()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(4)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def has_sent(self, number: int) -> bool:
        """Return True once so many have ended."""
        return self.outcomes.total() >= number

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def _send(self) -> None:
        while not self._over.wait(self.PAUSE_SECONDS):
            try:
                outcome = self._deliver(f"one_shot_{next(self._number)}")
            except OSError as error:
                outcome = type(error).__name__
            self.outcomes[outcome] += 1

    def _deliver(self, webhook_id: str) -> str:
        with socket.create_connection(("127.0.0.1", self._port), timeout=20) as raw:
            connection = self._trust.wrap_socket(raw, server_hostname=self._host) if self._trust else raw
            with connection:
                connection.sendall(request("connection: close", *signed(webhook_id)))
                return connection.recv(12).decode()
