"""A SOCKS5 proxy without a login (RFC 1928). It takes every connection to one server on this machine."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler
from urllib.parse import urlsplit

from support.in_thread import Server, in_thread
from support.platform.tunnel import join

_VERSION, _NO_LOGIN, _DONE, _REFUSED = 5, 0, 0, 2
_LENGTHS = {1: 4, 4: 16}
_NAME = 3


class SocksProxy(Server):
    """The proxy.

    Attributes:
        is_refusing: True if it refuses every connection.
        hosts: names and ports that clients wanted to reach; addresses are written as hexadecimal digits.
    """

    def __init__(self, server_url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        server = urlsplit(server_url)
        self.to = server.hostname or "", server.port or 0
        self.is_refusing = False
        self.hosts: list[tuple[str, int]] = []
        self.address = f"127.0.0.1:{self.server_address[1]}"


class _Connection(StreamRequestHandler):
    server: SocksProxy

    def handle(self) -> None:
        with suppress(OSError, IndexError):
            _, count = self.rfile.read(2)
            self.rfile.read(count)
            self.wfile.write(bytes((_VERSION, _NO_LOGIN)))
            kind = self.rfile.read(4)[3]
            host = self.rfile.read(_LENGTHS[kind] if kind != _NAME else self.rfile.read(1)[0])
            port = int.from_bytes(self.rfile.read(2))
            self.server.hosts.append((host.decode() if kind == _NAME else host.hex(), port))
            status = _REFUSED if self.server.is_refusing else _DONE
            self.wfile.write(bytes((_VERSION, status, 0, 1)) + bytes(6))
            if status == _DONE:
                with socket.create_connection(self.server.to) as server:
                    join(self.request, server)


@contextmanager
def socks_proxy(server_url: str) -> Iterator[SocksProxy]:
    """Run a proxy in front of that server."""
    with in_thread(SocksProxy(server_url)) as proxy:
        yield proxy
