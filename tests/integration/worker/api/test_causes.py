"""Why a platform does not answer, told apart over real sockets, for API and token endpoint."""

import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from socketserver import BaseRequestHandler

import pytest
import trustme

from credhook.worker.api.errors import Unavailable, hint
from credhook.worker.api.token import ClientCredentials
from support.in_thread import Server, in_thread
from support.platform.scripted_server import CUT, RESET, TOKEN, answering, not_listening, presentation, silent, tls_for
from support.platform.transports import api_over


@contextmanager
def saying(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    with answering(lambda *_: answer, tls) as server:
        yield server.url


class Refusing(BaseRequestHandler):
    """HTTP where TLS was expected: the greeting is a bad request to it."""

    def handle(self) -> None:
        self.request.recv(65_536)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


@contextmanager
def in_clear() -> Iterator[str]:
    with in_thread(Server(("127.0.0.1", 0), Refusing)) as server:
        yield f"https://127.0.0.1:{server.server_address[1]}"


HALF = presentation("p")[:-9] + CUT
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
#: By the word for it, a place that does not answer.
TROUBLES: dict[str, Callable[[trustme.CA], AbstractContextManager[str]]] = {
    "name_resolution": lambda _: nullcontext("http://platform.invalid"),
    "refused": lambda _: not_listening(),
    "unreachable": lambda _: nullcontext("http://224.0.0.1"),  # No group of hosts takes connections.
    "closed": lambda _: saying(b""),
    "closed over TLS": lambda authority: saying(b"", tls_for(authority)),
    "closed in its body": lambda _: saying(HALF),
    "closed in its body over TLS": lambda authority: saying(HALF, tls_for(authority)),
    "reset": lambda _: saying(RESET),
    "reset over TLS": lambda authority: saying(RESET, tls_for(authority)),
    "protocol": lambda _: saying(b"HTTP/1.1 what\r\n\r\n"),
    "certificate": lambda _: saying(presentation("p"), tls_for(trustme.CA())),
    "certificate_name": lambda authority: saying(presentation("p"), tls_for(authority, "platform.test")),
    "certificate_expired": lambda authority: saying(presentation("p"), tls_for(authority, not_after=LONG_AGO)),
    "tls": lambda _: in_clear(),
    "timeout": lambda _: silent(),
}
#: Words of the URL say nothing of the cause.
PATH = "/proxy/dns-error"
HINTS = {
    "certificate": "SSL_CERT_FILE",
    "certificate_name": "another name",
    "certificate_expired": "clock",
    "timeout": "CREDHOOK_FETCH_TIMEOUT",
}


@pytest.mark.parametrize("cause", TROUBLES)
@pytest.mark.parametrize(
    ("operation", "named", "other"),
    [
        ("presentations.get", "CREDHOOK_API_URL", "CREDHOOK_TOKEN_URL"),
        ("token", "CREDHOOK_TOKEN_URL", "CREDHOOK_API_URL"),
    ],
)
async def test_error_names_the_cause_and_the_setting(
    carrier: str,
    operation: str,
    named: str,
    other: str,
    cause: str,
    authority: trustme.CA,
    ca: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    with answering(lambda *_: presentation("p")) as well, TROUBLES[cause](authority) as url:
        api_url, token_url = (well.url, url + PATH) if operation == "token" else (url + PATH, well.url + TOKEN)
        auth = ClientCredentials(token_url, "me", "s3cret")
        async with api_over(carrier, api_url, auth, timeout=0.3 if cause == "timeout" else 5.0) as api:
            with pytest.raises(Unavailable) as caught:
                await api.presentations.get("p")
        assert well.targets == []
    error = caught.value
    assert (error.operation, error.cause, error.status) == (operation, cause.split(maxsplit=1)[0], None)
    assert named in hint(error)
    assert other not in hint(error) + str(error)
    assert HINTS.get(cause, "") in hint(error)


#: Takes all files that the process may open, then sends a request to the URL, and prints the cause of its failure.
WITHOUT_FILES = """
import asyncio, os, resource, sys
from contextlib import suppress
from credhook.worker.api.http.exchange import Request, Unanswered, Unsendable
from credhook.worker.api.http.transport import CurlTransport

async def main():
    transport = CurlTransport(5.0)
    assert (await transport.send(Request("GET", sys.argv[1], {}))).status == 200
    if sys.argv[2] == "closed":
        await transport.aclose()
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with suppress(OSError):
        while True:
            os.dup(0)
    try:
        await transport.send(Request("POST", sys.argv[1], {}))
    except Unanswered as failure:
        print(failure.cause)
    except Unsendable:
        print("unsendable")

asyncio.run(main())
"""


@pytest.mark.parametrize(("transport", "cause"), [("open", "socket"), ("closed", "unsendable")])
def test_lack_of_files_is_not_taken_for_a_fault_of_the_platform(transport: str, cause: str) -> None:
    with answering(lambda *_: presentation("p")) as server:
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        command = [sys.executable, "-c", WITHOUT_FILES, server.url + PATH, transport]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == f"{cause}\n"
    assert "CREDHOOK_CONCURRENCY" in hint(Unavailable("x", operation="users.list", cause="socket"))
