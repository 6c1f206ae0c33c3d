"""A server of the standard library's, in a thread for as long as a test needs it."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

S = TypeVar("S", bound=socketserver.BaseServer)


@contextmanager
def in_thread(server: S) -> Iterator[S]:
    """The server, which answers meanwhile; closed at the end."""
    with server:
        # It looks so often, in seconds, whether it is to end.
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
