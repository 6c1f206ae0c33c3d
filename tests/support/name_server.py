"""A name server that answers every question with the addresses that it is told, as Docker's does for a service."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Flags of an answer without an error; a question's type for IPv4, its class, and seconds that an answer lasts.
_ANSWER, _A, _IN, _LASTS = 0x8180, 1, 1, 1
#: Bytes of a message's head; the name of every record stands right after it.
_HEAD, _NAME = 12, 0xC00C


@contextmanager
def name_server(addresses: list[str]) -> Iterator[str]:
    """Answer on loopback, from a thread; its `host:port`. The list may change meanwhile."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=_serve, args=(server, addresses))
        thread.start()
        host, port = server.getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", (host, port))
            thread.join()


def _serve(server: socket.socket, addresses: list[str]) -> None:
    while True:
        query, sender = server.recvfrom(4_096)
        if not query:
            return
        server.sendto(_answer(query, addresses), sender)


def _answer(query: bytes, addresses: list[str]) -> bytes:
    end = query.index(b"\0", _HEAD) + 5  # The name, its end, type and class.
    kind = struct.unpack(">H", query[end - 4 : end - 2])[0]
    found = addresses if kind == _A else []
    head = query[:2] + struct.pack(">HHHHH", _ANSWER, 1, len(found), 0, 0)
    records = [struct.pack(">HHHIH", _NAME, _A, _IN, _LASTS, 4) + socket.inet_aton(address) for address in found]
    return head + query[_HEAD:end] + b"".join(records)
