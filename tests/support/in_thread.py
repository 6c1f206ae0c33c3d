"""Servers of the standard library, in a thread for as long as a test needs them."""

import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple, TypeVar

S = TypeVar("S", bound=socketserver.BaseServer)


@contextmanager
def in_thread(server: S) -> Iterator[S]:
    """Let the server answer until the end of the block."""
    with server:
        # It checks every 0.02 s whether to end.
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Asked(NamedTuple):
    method: str
    path: str
    headers: Message
    body: bytes


class Server(socketserver.ThreadingTCPServer):
    """A thread for each connection. Nothing is said of clients that hang up."""

    allow_reuse_address = daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        pass


@contextmanager
def http_server(
    answer: Callable[[Asked], tuple[int, dict[str, str], bytes]], tls: ssl.SSLContext | None = None, port: int = 0
) -> Iterator[str]:
    """Answer each request, on a connection of its own, with a status, headers and a body. Yield the root URL."""

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, headers, content = answer(Asked(self.command, self.path, self.headers, body))
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = reply  # noqa: N815  Names that the base class looks for.

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  The base class's name for it.
            pass

    server = Server(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with in_thread(server):
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
