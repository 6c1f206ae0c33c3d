"""An HTTP proxy, as companies have them: CONNECT for what is encrypted, whole URLs for what is not.

Wherever a request wants to go, it is taken to one server on this machine, so that hosts need no addresses.
"""

import base64
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from in_thread import in_thread

#: What goes no further than to the proxy.
_HOPS = (b"connection:", b"proxy-connection:", b"proxy-authorization:", b"keep-alive:")

REFUSED = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"


class Proxy(socketserver.ThreadingTCPServer):
    """The proxy.

    Attributes:
        to: host and port of the server that everything is taken to.
        credentials: `name:password` that it wants, or nothing.
        says: what everyone is told instead; nothing means to hang up.
        lines: the request lines that came.
        heads: the headers that came, of each request.
        hung_up: released whenever a client has ended a connection that went through.
        url: its own.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, server_url: str, *, credentials: str, says: bytes | None, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        server = urlsplit(server_url)
        self.to = server.hostname or "", server.port or 0
        self.credentials = credentials
        self.says = says
        self.tls = tls
        self.lines: list[str] = []
        self.heads: list[bytes] = []
        self.hung_up = threading.Semaphore(0)
        at = f"{credentials}@" if credentials else ""
        self.url = f"http{'s' if tls else ''}://{at}127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: Any) -> None:
        """Who hangs up is no news."""


class _Connection(socketserver.StreamRequestHandler):
    server: Proxy

    def setup(self) -> None:
        if self.server.tls is not None:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def handle(self) -> None:
        with suppress(OSError):
            while line := self.rfile.readline():
                method, target, _ = line.decode().split()
                head = _head(self.rfile)
                self.server.lines.append(f"{method} {target}")
                self.server.heads.append(b"".join(head))
                body = self.rfile.read(_length(head))
                if self.server.says is not None:
                    self.wfile.write(self.server.says)
                    return
                if not self._is_known(head):
                    self.wfile.write(REFUSED)
                    return
                with socket.create_connection(self.server.to) as server:
                    if method == "CONNECT":
                        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                        self._join(server)
                        return
                    self._pass_on(server, method, target, head, body)

    def finish(self) -> None:
        super().finish()
        self.request.close()  # The server knows the socket below TLS only.

    def _is_known(self, head: list[bytes]) -> bool:
        wanted = base64.b64encode(self.server.credentials.encode())
        return not self.server.credentials or any(
            line.lower().startswith(b"proxy-authorization: basic ") and line.strip().endswith(b" " + wanted)
            for line in head
        )

    def _pass_on(self, server: socket.socket, method: str, target: str, head: list[bytes], body: bytes) -> None:
        url = urlsplit(target)
        assert url.scheme == "http", target
        kept = b"".join(line for line in head if not line.lower().startswith(_HOPS))
        server.sendall(f"{method} {url.path}{'?' if url.query else ''}{url.query} HTTP/1.1\r\n".encode() + kept)
        server.sendall(b"\r\n" + body)
        with server.makefile("rb") as answer:
            begins = [answer.readline(), *_head(answer)]
            self.wfile.write(b"".join(begins) + b"\r\n" + answer.read(_length(begins)))

    def _join(self, server: socket.socket) -> None:
        """Pass on whatever comes from either side until both are through."""

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(65_536):
                    sink.sendall(data)
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

        back = threading.Thread(target=pump, args=(server, self.request), daemon=True)
        back.start()
        pump(self.request, server)
        self.server.hung_up.release()
        back.join()


def _head(stream: BinaryIO | Any) -> list[bytes]:
    """The lines of a head, but for the one that ends it."""
    lines = []
    while (line := stream.readline()) not in {b"\r\n", b""}:
        lines.append(line)
    return lines


def _length(head: list[bytes]) -> int:
    lengths = [line.partition(b":")[2] for line in head if line.lower().startswith(b"content-length:")]
    return int(lengths[0]) if lengths else 0


@contextmanager
def proxying(
    server_url: str, *, credentials: str = "", says: bytes | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[Proxy]:
    """A proxy that takes everything to that server."""
    with in_thread(Proxy(server_url, credentials=credentials, says=says, tls=tls)) as proxy:
        yield proxy
