"""Servers on real sockets: one that answers as a test's script says, some that do not answer, and a client's token."""

import json
import math
import socket
import socketserver
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime

import trustme

from credhook.worker.api.http.exchange import Transport
from credhook.worker.api.token import ClientCredentials, Token
from support.in_thread import Server, in_thread

#: What the script is given: the request line's target, and how many requests came before. What it returns is sent as it
#: is; nothing means to hang up, `CUT` at its end to hang up after it, and `RESET` to tear the connection down.
Script = Callable[[str, int], bytes]

CUT, RESET = b"cut", b"reset"
TOKEN = "/token"
PRESENTATION = "/me-creds/api/presentations/"


def ok(document: object, *headers: str, status: int = 200) -> bytes:
    """A whole answer of JSON."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


GRANTED = ok({"access_token": "t0ken-value", "expires_in": 300, "token_type": "Bearer"})


def presentation(id: str, **more: object) -> bytes:  # noqa: A002  The platform's word.
    return ok({"data": {"id": id, "status": "verified", **more}})


class Answering(Server):
    """Grants tokens, and answers everything else by the script.

    Attributes:
        connections: how many were opened.
        targets, heads: the targets of all requests but those for tokens; the headers of all.
    """

    def __init__(self, script: Script, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.script = script
        self.tls = tls
        self.connections = 0
        self.targets: list[str] = []
        self.heads: list[bytes] = []
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server_address[1]}"


class _Connection(socketserver.StreamRequestHandler):
    server: Answering

    def setup(self) -> None:
        self.server.connections += 1
        if self.server.tls is not None:
            tls = self.server.tls.wrap_socket(self.request, server_side=True, do_handshake_on_connect=False)
            try:
                tls.do_handshake()
            except OSError:
                self._hear_out(tls)
                raise
            self.request = tls
        super().setup()

    @staticmethod
    def _hear_out(refused: ssl.SSLSocket) -> None:
        """As servers do: with something left unread, the connection would be torn down, and what we said with it."""
        with refused, suppress(OSError):
            refused.shutdown(socket.SHUT_WR)
            while refused.recv(65_536):
                pass

    def handle(self) -> None:
        with suppress(ConnectionError):
            while line := self.rfile.readline():
                answer = self._answer(line.split()[1].decode(), self._body())
                if answer == RESET:
                    self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.request.close()
                if answer in {b"", RESET}:
                    return
                self.wfile.write(answer.removesuffix(CUT))
                if answer.endswith(CUT):
                    return

    def finish(self) -> None:
        super().finish()
        self.request.close()  # The server knows the socket below TLS only.

    def _body(self) -> bytes:
        head, length = b"", 0
        while (header := self.rfile.readline()) not in {b"\r\n", b""}:
            head += header
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        self.server.heads.append(head)
        return self.rfile.read(length)

    def _answer(self, target: str, _: bytes) -> bytes:
        if target == TOKEN:
            return GRANTED
        self.server.targets.append(target)
        return self.server.script(target, len(self.server.targets) - 1)


def tls_for(authority: trustme.CA, host: str = "127.0.0.1", *, not_after: datetime | None = None) -> ssl.SSLContext:
    """TLS as a server with a certificate for this host has it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(host, not_after=not_after).configure_cert(context)
    return context


def answering(script: Script, tls: ssl.SSLContext | None = None) -> AbstractContextManager[Answering]:
    return in_thread(Answering(script, tls))


class GrantedCredentials(ClientCredentials):
    """Credentials that have a token and never ask for another."""

    async def token(self, transport: Transport) -> Token:
        return Token("t", renew_at=math.inf)


def credentials() -> ClientCredentials:
    return GrantedCredentials("http://127.0.0.1:1/token", "me", "s3cret")


@contextmanager
def not_listening() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
