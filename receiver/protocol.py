"""uvicorn's HTTP protocol, with two things that it leaves open."""

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes that a request may send before its headers are complete. httptools sets no limit and keeps them all; what is
#: shorter than this is judged by the application, which knows how to refuse.
MAX_HEAD: Final = 262_144


class Protocol(HttpToolsProtocol):
    """Ends connections that send headers without end, and on shutdown those that are idle."""

    _head = 0

    def data_received(self, data: bytes) -> None:
        """Count what comes before the headers are complete."""
        self._head += len(data)
        if self._head > MAX_HEAD and (self.cycle is None or self.cycle.response_complete):
            self.transport.abort()
            return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Begin to count anew: what follows is a body, which the application bounds, or the next request."""
        self._head = 0
        super().on_headers_complete()

    def shutdown(self) -> None:
        """Drop an idle connection at once: to close TLS politely is to wait for a peer that may never answer."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:
            super().shutdown()
