"""A tunnel as authors have one: TLS at a public name, and the bytes within it to a port of theirs."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trustme


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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, port), daemon=True).start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"


def _accept(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with suppress(OSError):  # It ends when it is closed.
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_carry, args=(connection, context, port), daemon=True).start()


def _carry(connection: socket.socket, context: ssl.SSLContext, port: int) -> None:
    """One request and its answer, as the sandbox sends them."""
    with (
        suppress(OSError),
        context.wrap_socket(connection, server_side=True) as outside,
        socket.create_connection(("127.0.0.1", port)) as inside,
    ):
        back = threading.Thread(target=_pump, args=(inside, outside), daemon=True)
        back.start()
        _pump(outside, inside)
        back.join(60)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
