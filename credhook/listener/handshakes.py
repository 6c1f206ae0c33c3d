"""Accepts connections that speak TLS, so that a handshake that is not finished is counted and ended like the rest.

The loops' own servers tell a protocol of its connection only once it is encrypted: until then nothing of ours could
count it, and nothing but a time-out end it.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from credhook.listener.allocator import return_free_pages, return_large_blocks
from credhook.listener.connections import Connections
from credhook.listener.protocol import Bounded
from credhook.listener.refusals import FULL

#: Connections that are accepted before those that are open are looked after again.
_AT_ONCE: Final = 16

#: Seconds without accepting, after the system has refused to.
_PAUSE: Final = 0.2

#: Connections that have come after which memory is given back, a second later: only a flood is so many.
_MANY: Final = 64
_BREATH: Final = 1.0

#: Seconds that a sender gets to confirm the end of an encrypted connection, whose buffers are kept until then.
_FAREWELL: Final = 0.1


class TlsAcceptor:
    """Takes connections from a listening socket; as a server, uvicorn closes it and waits for it."""

    def __init__(
        self, listener: socket.socket, tls: ssl.SSLContext, connections: Connections, protocol: Callable[[], Bounded]
    ) -> None:
        """Begin at once; a protocol is made for each connection, and connected once that is encrypted."""
        return_large_blocks()
        listener.setblocking(False)
        self._listener = listener
        self._tls = tls
        self._connections = connections
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._accepted = 0
        self._listen()

    def close(self) -> None:
        """Accept nobody more, and give up those who have not finished."""
        self._loop.remove_reader(self._listener)
        if self._pause:
            self._pause.cancel()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Return once those are gone."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return  # Another process was faster, or the sender has gone.
            except OSError:  # The system has no room: asked at once again, it would say the same.
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_PAUSE, self._listen)
                return
            if self._connections.admit():
                self._shake_hands(accepted)
            else:  # An answer would have to be encrypted first.
                self._connections.count(FULL)
                accepted.close()

    def _shake_hands(self, accepted: socket.socket) -> None:
        self._accepted += 1
        if self._accepted == _MANY:
            self._loop.call_later(_BREATH, self._give_back)
        protocol = self._protocol()
        task = self._loop.create_task(self._encrypt(accepted, protocol))
        protocol.handshake = task
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def _give_back(self) -> None:
        self._accepted = 0
        return_free_pages()

    async def _encrypt(self, accepted: socket.socket, protocol: Bounded) -> None:
        """Give the protocol an encrypted connection; a sender that cannot do it is no concern of ours."""
        accepted.setblocking(False)
        try:
            with suppress(OSError):
                await self._loop.connect_accepted_socket(
                    lambda: protocol, accepted, ssl=self._tls, ssl_shutdown_timeout=_FAREWELL
                )
        finally:
            if protocol.transport is None:
                self._connections.remove(protocol)
