"""A server that requests go to: what its connections are found by, and the bytes that a request is."""

import re
import ssl
from collections.abc import Callable, Mapping
from http import HTTPMethod
from typing import Final

import aiohttp
import yarl

from credhook.worker.api.http.exchange import Request
from credhook.worker.api.http.proxies import Proxies

#: Origin, path and query; credentials have no place in it, and a fragment is not sent.
_URL: Final = re.compile(r"(https?://[^/?#@\s]+)([^#\s]*)(#.*)?", re.IGNORECASE)


def parts_of(url: str) -> tuple[str, str]:
    """A URL's origin, and what is asked for there: as it was put together, nothing is resolved or encoded once more.

    Raises:
        ValueError: It is none that a request could go to.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise ValueError("no URL of a server")
    origin, target, _ = match.groups()
    return origin, target if target.startswith("/") else f"/{target}"


class Server:
    """A server, and the way to it.

    Attributes:
        origin: Scheme, host and port.
        is_proxied: Whether requests go to a proxy first.
        key: Makes what aiohttp finds and makes connections by.
    """

    def __init__(self, origin: str, proxies: Proxies, ssl_context: ssl.SSLContext) -> None:
        """Find the way.

        Raises:
            ValueError, UnsupportedProxy: There is none, or no such server.
        """
        url = yarl.URL(origin, encoded=True)
        proxy, for_proxy = proxies.on_the_way_to(url)
        self.origin = origin
        self.is_proxied = proxy is not None
        self._host = url.host_port_subcomponent or ""
        forwarded = self.is_proxied and url.scheme == "http"
        self._before_target = f"{url.scheme}://{self._host}" if forwarded else ""
        self._for_proxy = (forwarded and for_proxy) or {}
        headers = None if forwarded else for_proxy
        # One for each connection: aiohttp notes in it what a proxy was told.
        self.key: Callable[[], aiohttp.ClientRequest] = lambda: aiohttp.ClientRequest(
            "GET", url, ssl=ssl_context, proxy=proxy, proxy_headers=headers
        )
        #: The headers of the last request, and their lines: most requests have the same, down to the object.
        self._headers: Mapping[str, str] = {}
        self._lines = ""

    def bytes_of(self, request: Request, target: str) -> bytes:
        """The request as it goes over the wire.

        Raises:
            ValueError: Something in it would end its line, and begin another.
        """
        if request.headers is not self._headers or not self._lines:
            self._lines = _lines({"Host": self._host, **request.headers, **self._for_proxy})
            self._headers = request.headers
        first, length, body = f"{request.method} {self._before_target}{target} HTTP/1.1", "", request.body or b""
        if not first.isprintable():
            raise ValueError("a control character in the request line")
        if body or request.method != HTTPMethod.GET:
            length = f"Content-Length: {len(body)}\r\n"
        return f"{first}\r\n{self._lines}{length}\r\n".encode() + body


def _lines(headers: Mapping[str, str]) -> str:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    if not all(map(str.isprintable, lines)):
        raise ValueError("a control character in a header")
    return "".join(f"{line}\r\n" for line in lines)
