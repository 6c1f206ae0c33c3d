"""Closing a connection whose answers cannot be told apart any more: each of the next could be another request's."""

import os
import socket
from contextlib import suppress
from typing import Any, Final

import httpx

#: Where a response keeps the connection that it came over, among its `extensions`. The name is httpx's.
CONNECTION: Final = "network_stream"

#: The way from the body of one of httpx's own answers to the parser behind it, which keeps what came after the body.
#: httpx would read that as the answer to its next request.
_TO_PARSER: Final = ("_httpcore_stream", "_stream", "_connection", "_h11_state")


def hang_up(response: httpx.Response) -> None:
    """Close the connection that an answer came over.

    Whoever else is using it by now gets an error, rather than somebody else's answer.
    """
    connection: Any = response.extensions.get(CONNECTION)
    raw = connection and connection.get_extra_info("socket")
    if not raw:
        return
    # The owner closes its descriptor, which another thread may be waiting for: a copy of it reaches the connection.
    with suppress(OSError), socket.socket(fileno=os.dup(raw.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def has_surplus(body: Any) -> bool:
    """Whether httpx has read more than the answer that this is the body of."""
    for name in _TO_PARSER:
        body = getattr(body, name, None)
        if body is None:
            return False
    data, _ = body.trailing_data
    return bool(data)
