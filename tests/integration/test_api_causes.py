"""Why a platform does not answer, told apart over real sockets, for API and token endpoint."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest
import trustme
from scripted_server import RESET, TOKEN, answering, not_listening, presentation, silent

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import Unavailable, hint
from credhook.worker.api.token import ClientCredentials


async def error_of(api_url: str, token_url: str, seconds: float) -> Unavailable:
    async with AsyncApi(api_url, ClientCredentials(token_url, "me", "s3cret"), timeout=seconds) as api:
        with pytest.raises(Unavailable) as caught:
            await api.presentations.get("p")
    return caught.value


@contextmanager
def unknown() -> Iterator[str]:
    yield "http://platform.invalid"


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    with answering(lambda *_: answer) as server:
        yield server.url


@contextmanager
def untrusted() -> Iterator[str]:
    theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(theirs)
    with answering(lambda *_: presentation("p"), theirs) as server:
        yield server.url


@contextmanager
def in_clear() -> Iterator[str]:
    """An HTTP server where TLS was expected: the greeting is a bad request to it."""

    def greet() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=greet, daemon=True).start()
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


#: By the word for it, a place that does not answer.
TROUBLES: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "name_resolution": unknown,
    "refused": not_listening,
    "closed": lambda: saying(b""),
    "reset": lambda: saying(RESET),
    "protocol": lambda: saying(b"HTTP/1.1 what\r\n\r\n"),
    "certificate": untrusted,
    "tls": in_clear,
    "timeout": silent,
}
HINTS = {"certificate": "SSL_CERT_FILE", "timeout": "CREDHOOK_FETCH_TIMEOUT"}


@pytest.mark.parametrize("cause", TROUBLES)
async def test_an_api_that_does_not_answer_says_why_and_which_variable_to_look_at(cause: str) -> None:
    with answering(lambda *_: b"") as tokens, TROUBLES[cause]() as url:
        error = await error_of(url, tokens.url + TOKEN, 0.3 if cause == "timeout" else 5.0)
    assert (error.operation, error.cause, error.status) == ("presentations.get", cause, None)
    assert "CREDHOOK_API_URL" in hint(error)
    assert HINTS.get(cause, "") in hint(error)


@pytest.mark.parametrize("cause", TROUBLES)
async def test_a_token_endpoint_that_does_not_answer_is_not_taken_for_the_api(cause: str) -> None:
    with answering(lambda *_: presentation("p")) as platform, TROUBLES[cause]() as url:
        error = await error_of(platform.url, url + "/another-token", 0.3 if cause == "timeout" else 5.0)
        assert platform.targets == []
    assert (error.operation, error.cause, error.status) == ("token", cause, None)
    assert "CREDHOOK_TOKEN_URL" in hint(error)
    assert "CREDHOOK_API_URL" not in hint(error) + str(error)
