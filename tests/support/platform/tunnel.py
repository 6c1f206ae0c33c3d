"""A tunnel as authors have one: TLS at a public name, and the bytes within it to a port of theirs."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler

import trustme

from support.in_thread import Server, in_thread


@contextmanager
def tunnel(certificate: trustme.LeafCert, port: int, *, known: trustme.CA | None = None) -> Iterator[str]:
    """Yield the https URL of a port on loopback. Nothing need listen there yet.

    `known`: issues the certificates that clients must show.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)
    if known:
        known.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED

    class Carried(BaseRequestHandler):
        def handle(self) -> None:
            with (
                context.wrap_socket(self.request, server_side=True) as outside,
                socket.create_connection(("127.0.0.1", port)) as inside,
            ):
                join(outside, inside)

    with in_thread(Server(("127.0.0.1", 0), Carried)) as server:
        yield f"https://127.0.0.1:{server.server_address[1]}"


def join(outside: socket.socket, inside: socket.socket, *, hung_up: Callable[[], object] = lambda: None) -> None:
    """Pass on whatever comes from either side until both are through. `hung_up` is called when the outside is."""
    back = threading.Thread(target=_pump, args=(inside, outside), daemon=True)
    back.start()
    _pump(outside, inside)
    hung_up()
    back.join(60)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
