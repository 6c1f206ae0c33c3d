"""Responses over a raw socket."""

import socket
from http.client import HTTPResponse


def next_response(raw: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next one, which is read whole, in however many pieces it comes."""
    response = HTTPResponse(raw)
    response.begin()
    content = response.read()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, content
