"""An HTTP proxy, as companies have them: CONNECT for what is encrypted, whole URLs for what is not.

Wherever a request wants to go, it is taken to one server on this machine, so that hosts need no addresses.
"""

import base64
import socket
import ssl
import threading
from contextlib import AbstractContextManager, closing, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from support.in_thread import Server, in_thread
from support.platform.tunnel import join

#: What goes no further than to the proxy.
_HOPS = {"connection", "proxy-connection", "proxy-authorization", "keep-alive"}

REFUSED = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"


class Proxy(Server):
    """The proxy.

    Attributes:
        credentials: `name:password` that it wants, or nothing.
        says: what everyone is told instead; nothing means to hang up.
        lines, heads: the request lines that came, and the headers of each.
        hung_up: released whenever a client has ended a connection that went through.
    """

    def __init__(self, server_url: str, *, credentials: str, says: bytes | None, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        server = urlsplit(server_url)
        self.to = server.hostname or "", server.port or 0
        self.credentials = credentials
        self.says = says
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.lines: list[str] = []
        self.heads: list[bytes] = []
        self.hung_up = threading.Semaphore(0)
        at = f"{credentials}@" if credentials else ""
        self.url = f"http{'s' if tls else ''}://{at}127.0.0.1:{self.server_address[1]}"


class _Connection(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def take(self) -> None:
        self.server.lines.append(f"{self.command} {self.path}")
        self.server.heads.append("".join(f"{name}: {value}\r\n" for name, value in self.headers.items()).encode())
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        wanted = f"Basic {base64.b64encode(self.server.credentials.encode()).decode()}"
        self.close_connection = True
        if self.server.says is not None:
            self.wfile.write(self.server.says)
        elif self.server.credentials and self.headers["proxy-authorization"] != wanted:
            self.wfile.write(REFUSED)
        elif self.command == "CONNECT":
            with socket.create_connection(self.server.to) as server:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                join(self.request, server, hung_up=self.server.hung_up.release)
        else:
            self._pass_on(body)
            self.close_connection = False

    do_CONNECT = do_GET = do_POST = take  # noqa: N815  Names that the base class looks for.

    def _pass_on(self, body: bytes) -> None:
        url = urlsplit(self.path)
        assert url.scheme == "http", self.path
        kept = {name: value for name, value in self.headers.items() if name.lower() not in _HOPS}
        with closing(HTTPConnection(*self.server.to)) as server:
            server.request(self.command, url._replace(scheme="", netloc="").geturl(), body or None, kept)
            answer = server.getresponse()
            content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def proxying(
    server_url: str, *, credentials: str = "", says: bytes | None = None, tls: ssl.SSLContext | None = None
) -> AbstractContextManager[Proxy]:
    """A proxy that takes everything to that server."""
    return in_thread(Proxy(server_url, credentials=credentials, says=says, tls=tls))
