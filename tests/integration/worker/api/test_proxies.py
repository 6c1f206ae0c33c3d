"""A platform behind a proxy, as the environment names one: over real sockets."""

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import trustme

from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import InvalidResponse, Unavailable, hint
from credhook.worker.api.token import ClientCredentials
from support.platform.http_proxy import REFUSED, proxying
from support.platform.scripted_server import (
    PRESENTATION,
    TOKEN,
    answering,
    credentials,
    not_listening,
    presentation,
    silent,
    tls_for,
)

#: No name server knows it, so only a proxy gets there.
HOST = "platform.test"


@pytest.fixture(autouse=True)
def trusted(ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))


def well(target: str, _: int) -> bytes:
    return presentation(target.removeprefix(PRESENTATION))


def auth(url: str) -> ClientCredentials:
    return ClientCredentials(f"{url}/token", "me", "s3cret")


def basic(credentials: str) -> bytes:
    return b"Proxy-Authorization: Basic " + base64.b64encode(credentials.encode())


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("credentials", ["", "me:s3cret of the proxy's", "a%40b:c%3Ad%2F"])
async def test_requests_go_through_the_proxy_and_its_credentials_no_further(
    scheme: str, credentials: str, encrypted: bool, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = credentials.replace("%40", "@").replace("%3A", ":").replace("%2F", "/")
    of_proxy = tls_for(authority) if encrypted else None
    of_platform = tls_for(authority, HOST) if scheme == "https" else None
    with answering(well, of_platform) as server, proxying(server.url, credentials=plain, tls=of_proxy) as proxy:
        monkeypatch.setenv(f"{scheme}_proxy".upper(), proxy.url.replace(plain, credentials.replace(" ", "%20")))
        url = f"{scheme}://{HOST}"
        async with AsyncApi(url, auth(url)) as api:
            for name in ("p", "q"):
                assert (await api.presentations.get(name)).id == name
        assert proxy.lines == (
            [f"CONNECT {HOST}:443"]  # One connection for all of them.
            if scheme == "https"
            else [f"POST {url}{TOKEN}", f"GET {url}{PRESENTATION}p", f"GET {url}{PRESENTATION}q"]
        )
        assert len(server.heads) == 3
        for head in proxy.heads:
            assert (basic(plain) in head.replace(b"proxy-a", b"Proxy-A")) is bool(credentials)
            assert b"Bearer" not in head or scheme == "http"
        for head in server.heads:
            assert b"proxy-" not in head.lower()
            assert f"Host: {HOST}\r\n".encode() in head


async def test_this_host_is_reached_directly_whatever_no_proxy_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(well) as server, proxying(server.url) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        async with AsyncApi(server.url, auth(server.url)) as api:
            assert (await api.presentations.get("p")).id == "p"
        assert proxy.lines == []


async def test_details_of_another_id_end_the_connection_through_the_proxy(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([presentation("stranger"), presentation("mine")])
    with answering(lambda *_: next(answers), tls_for(authority, HOST)) as server, proxying(server.url) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        async with AsyncApi(f"https://{HOST}", auth(f"https://{HOST}")) as api:
            with pytest.raises(InvalidResponse):
                await api.presentations.get("mine")
            assert (await api.presentations.get("mine")).id == "mine"
        assert proxy.lines == [f"CONNECT {HOST}:443"] * 2


@contextmanager
def saying(words: bytes) -> Iterator[str]:
    with proxying("http://127.0.0.1:1", says=words) as proxy:
        yield proxy.url


#: Whatever is asked for through it.
TROUBLES: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "wants to know who we are": lambda: saying(REFUSED),
    "is not there": not_listening,
    "has a name that nobody knows": lambda: nullcontext("http://proxy.invalid:3128"),
    "is of another kind": lambda: nullcontext("socks5://127.0.0.1:1080"),
}
#: Where the proxy's own words can be told from the platform's.
OF_TUNNELS = TROUBLES | {
    "says nothing": silent,
    "hangs up": lambda: saying(b""),
    "speaks something else": lambda: saying(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "does not reach the platform": lambda: saying(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nno\n"),
    "forbids it": lambda: saying(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"),
}


@pytest.mark.parametrize("operation", ["token", "presentations.get"])
@pytest.mark.parametrize(
    ("scheme", "trouble"), [*(("http", each) for each in TROUBLES), *(("https", each) for each in OF_TUNNELS)]
)
async def test_a_proxy_that_does_not_help_is_named_as_the_cause(
    operation: str, scheme: str, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(well) as here, OF_TUNNELS[trouble]() as proxy_url:
        monkeypatch.setenv("ALL_PROXY", proxy_url)
        there = f"{scheme}://{HOST}"
        api_url, token_url = (here.url, there) if operation == "token" else (there, here.url)
        with_token = credentials() if operation != "token" else auth(token_url)
        error = await error_of(api_url, with_token, timeout=0.5 if trouble == "says nothing" else 60.0)
        assert here.targets == []
    assert (error.operation, error.cause, error.status) == (operation, "proxy", None)
    for text in (hint(error), str(error)):
        assert "HTTPS_PROXY" in text
        assert "NO_PROXY" in text


async def error_of(url: str, auth: ClientCredentials, **options: Any) -> Unavailable:
    async with AsyncApi(url, auth, **options) as api:
        with pytest.raises(Unavailable) as caught:
            await api.presentations.get("p")
    return caught.value


async def test_a_platform_that_is_not_to_be_trusted_is_so_through_a_proxy_as_well(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is for another name, and the proxy is not to blame."""
    with answering(well, tls_for(authority, "other.test")) as server, proxying(server.url) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with answering(well) as tokens:
            error = await error_of(f"https://{HOST}", auth(tokens.url))
        assert proxy.lines == [f"CONNECT {HOST}:443"]
        assert server.targets == []
    assert error.cause == "certificate"


async def test_a_platform_that_takes_too_long_is_not_taken_for_the_proxy(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def stuck(*_: object) -> bytes:
        over.wait(60)
        return b""

    with answering(stuck, tls_for(authority, HOST)) as server, proxying(server.url) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        for seconds in (1.0, 5.0, 30.0):  # As many as it takes to get there.
            error = await error_of(f"https://{HOST}", credentials(), timeout=seconds)
            assert await asyncio.to_thread(proxy.hung_up.acquire, timeout=60)  # Although the platform says nothing yet.
            if server.targets:
                break
        over.set()
        assert len(server.targets) == 1
    assert (error.operation, error.cause) == ("presentations.get", "timeout")
