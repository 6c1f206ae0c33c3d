"""uvicorn's server with bounds of ours, and without its signals."""

import asyncio
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from credhook.listener.connections import Connections
from credhook.listener.handshakes import TlsAcceptor
from credhook.listener.protocol import Bounded, TurnedAway


class Server(uvicorn.Server):
    """Serves an application on sockets, for senders that nobody knows."""

    def __init__(self, config: uvicorn.Config, connections: Connections, tls: ssl.SSLContext | None = None) -> None:
        """Of `config` protocol and TLS are not used; without `tls`, encryption is a proxy's."""
        super().__init__(config)
        self._connections = connections
        self._tls = tls

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the command: a process may have two servers, and both have to hear."""
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit`, and answer what was begun."""
        watch = asyncio.create_task(self._connections.watch())
        try:
            await super().serve(sockets)
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Run the application's start, then listen."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        self.servers = [await self._listen(one) for one in sockets or ()]  # type: ignore[misc]  # It only closes them.
        self.started = True

    async def _listen(self, listener: socket.socket) -> "asyncio.Server | TlsAcceptor":
        # The system would keep up to 6 MiB for each connection, and hand over 256 KiB at once before we can judge.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._connections.limits.received_at_once)
        if self._tls:
            return TlsAcceptor(listener, self._tls, self._connections, self._bounded)
        return await asyncio.get_running_loop().create_server(self._protocol, sock=listener)

    def _protocol(self) -> asyncio.Protocol:
        return self._bounded() if self._connections.admit() else TurnedAway(self._connections)

    def _bounded(self) -> Bounded:
        loop = asyncio.get_running_loop()
        return Bounded(self._connections, self.config, self.server_state, self.lifespan.state, loop)
