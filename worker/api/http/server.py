"""A server that requests go to: what its connections are found by, and the bytes that a request is. Pure."""

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPMethod
from typing import Final, Self

import aiohttp
import yarl

from credhook.worker.api.http.exchange import Request
from credhook.worker.api.http.proxies import Proxies, Proxy

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


@dataclass(frozen=True, slots=True)
class Server:
    """A server, and the way to it.

    Attributes:
        origin: Scheme, host and port.
        proxy: What is on the way.
        ssl_context: Trust for TLS.
        host: As the header says it.
        key: What aiohttp finds and makes connections by.
    """

    origin: yarl.URL
    proxy: Proxy
    host: str
    key: Callable[[], aiohttp.ClientRequest]

    @classmethod
    def at(cls, origin: str, proxies: Proxies, ssl_context: ssl.SSLContext) -> Self:
        """The server of an origin.

        Raises:
            ValueError, UnsupportedProxy: There cannot be one, or no way to it.
        """
        url = yarl.URL(origin, encoded=True)
        proxy = proxies.on_the_way_to(url)
        headers = proxy.headers if url.scheme == "https" else None

        def key() -> aiohttp.ClientRequest:
            return aiohttp.ClientRequest("GET", url, ssl=ssl_context, proxy=proxy.url, proxy_headers=headers)

        # It notes in its key what a proxy was told, and finds nothing by it again.
        reused = key()
        return cls(url, proxy, url.host_port_subcomponent or "", key if proxy.url else lambda: reused)

    def bytes_of(self, request: Request, target: str) -> bytes:
        """The request as it goes over the wire.

        Raises:
            ValueError: Something in it would end its line, and begin another.
        """
        body = request.body or b""
        headers = {"Host": self.host, **request.headers}
        if self.proxy.url is not None and self.origin.scheme == "http":
            target = f"{self.origin.scheme}://{self.host}{target}"
            headers |= self.proxy.headers or {}
        if body or request.method != HTTPMethod.GET:
            headers["Content-Length"] = str(len(body))
        lines = [f"{request.method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in headers.items()]]
        if not all(map(str.isprintable, lines)):
            raise ValueError("a control character in a header")
        return "\r\n".join([*lines, "\r\n"]).encode() + body
