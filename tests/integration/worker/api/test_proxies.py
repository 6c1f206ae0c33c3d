"""A platform behind a proxy, as the environment names one: over real sockets."""

import asyncio
import base64
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import trustme

from credhook.worker.api.errors import InvalidResponse, Unavailable, hint
from credhook.worker.api.http.exchange import Request, Unanswered
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
from support.platform.socks_proxy import socks_proxy
from support.platform.transports import api_over, transport_of

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
    carrier: str, scheme: str, credentials: str, encrypted: bool, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = credentials.replace("%40", "@").replace("%3A", ":").replace("%2F", "/")
    of_proxy = tls_for(authority) if encrypted else None
    of_platform = tls_for(authority, HOST) if scheme == "https" else None
    with answering(well, of_platform) as server, proxying(server.url, credentials=plain, tls=of_proxy) as proxy:
        monkeypatch.setenv(f"{scheme}_proxy".upper(), proxy.url.replace(plain, credentials.replace(" ", "%20")))
        url = f"{scheme}://{HOST}"
        async with api_over(carrier, url, auth(url)) as api:
            for name in ("p", "q"):
                assert (await api.presentations.get(name)).id == name
        assert proxy.lines == (
            [f"CONNECT {HOST}:443"] * (1 if carrier == "libcurl" else 3)  # httpx opens one for each request.
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


#: Addresses of no host: requests to them end at once unless they go through a proxy.
NOWHERE, NOWHERE_IPV6 = "224.0.0.7", "[ff02::7]"


@pytest.mark.parametrize(
    ("no_proxy", "url", "is_proxied"),
    [
        ("", "https://api.test", True),
        *(
            ("", f"{scheme}://{host}", False)
            for scheme in ("http", "https")
            for host in ("localhost:1", "127.8.9.10:1")
        ),
        ("", "http://[::1]:1", False),
        *(("", f"https://{host}", True) for host in ("127.test", "127.0.0.1.test", "localhost.test", NOWHERE)),
        *((name, "https://api.test", False) for name in ("api.test", "API.Test", "test", ".test", "*.test", "*")),
        *((names, "https://api.test", False) for names in ("other.test, api.test", "other.test api.test", "x,*")),
        *((name, "https://api.test", True) for name in ("other.test", "pi.test", "api.test.org", "*.api.test.org")),
        ("api.test", "https://API.test:8443/x", False),
        ("api.test:443", "https://api.test", False),
        ("*.test:443", "https://api.test", False),
        ("api.test:80", "http://api.test", False),
        ("api.test:8443", "https://api.test:8443", False),
        ("api.test:8443", "https://api.test", True),
        *((numbers, f"http://{NOWHERE}", False) for numbers in (NOWHERE, "224.0.0.0/8", f"{NOWHERE}:80")),
        *((numbers, f"http://{NOWHERE}", True) for numbers in ("224.0.0.0/30", f"{NOWHERE}:8080", "10.0.0.0/8")),
        *(
            (numbers, f"http://{NOWHERE_IPV6}", False)
            for numbers in ("ff02::7", "[ff02::7]", "ff02::/16", "[ff02::7]:80")
        ),
        *((numbers, f"http://{NOWHERE_IPV6}", True) for numbers in ("ff02::8", "[ff02::7]:8080", "ff03::/16")),
    ],
)
async def test_no_proxy_names_hosts_suffixes_ranges_and_ports(
    carrier: str, no_proxy: str, url: str, is_proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxying("http://127.0.0.1:1", says=REFUSED) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", no_proxy)
        transport = transport_of(carrier, 60.0)
        with pytest.raises(Unanswered) as caught:
            await transport.send(Request("GET", url, {}, repeatable=True))
        await transport.aclose()
        assert bool(proxy.lines) is is_proxied
        assert (caught.value.cause == "proxy") is is_proxied


@pytest.mark.parametrize("carrier", ["libcurl"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_requests_go_through_a_socks_proxy(
    carrier: str, scheme: str, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_platform = tls_for(authority, HOST) if scheme == "https" else None
    with answering(well, of_platform) as server, socks_proxy(server.url) as proxy:
        monkeypatch.setenv("ALL_PROXY", f"socks5h://{proxy.address}")
        url = f"{scheme}://{HOST}"
        async with api_over(carrier, url, auth(url)) as api:
            assert (await api.presentations.get("p")).id == "p"
        assert proxy.hosts == [(HOST, 443 if scheme == "https" else 80)]
        assert len(server.heads) == 2


async def test_socks_over_httpx_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5h://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "socksio", None)
    assert "a SOCKS proxy needs the package socksio" in str(await error_of("httpx", f"http://{HOST}", credentials()))


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_socks_proxy_that_refuses_is_named_as_the_cause(
    carrier: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(well) as server, socks_proxy(server.url) as proxy:
        proxy.is_refusing = True
        monkeypatch.setenv("ALL_PROXY", f"socks5h://{proxy.address}")
        error = await error_of(carrier, f"{scheme}://{HOST}", credentials())
    assert error.cause == "proxy"


async def test_details_of_another_id_end_the_connection_through_the_proxy(
    carrier: str, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([presentation("stranger"), presentation("mine")])
    with answering(lambda *_: next(answers), tls_for(authority, HOST)) as server, proxying(server.url) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        async with api_over(carrier, f"https://{HOST}", auth(f"https://{HOST}")) as api:
            with pytest.raises(InvalidResponse):
                await api.presentations.get("mine")
            assert (await api.presentations.get("mine")).id == "mine"
        assert proxy.lines == [f"CONNECT {HOST}:443"] * (2 if carrier == "libcurl" else 3)


@contextmanager
def saying(words: bytes) -> Iterator[str]:
    with proxying("http://127.0.0.1:1", says=words) as proxy:
        yield proxy.url


#: Whatever is asked for through it.
TROUBLES: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "wants to know who we are": lambda: saying(REFUSED),
    "is not there": not_listening,
    "has a name that nobody knows": lambda: nullcontext("http://proxy.invalid:3128"),
    "is of an unknown kind": lambda: nullcontext("ftp://127.0.0.1:1"),
    "is a SOCKS proxy and not there": lambda: nullcontext("socks5://127.0.0.1:1"),
    "has no name": lambda: nullcontext("http://"),
    "has a port that is none": lambda: nullcontext("http://me:hush@127.0.0.1:99999"),
    "has port 0": lambda: nullcontext("http://127.0.0.1:0"),
    "has an address that is none": lambda: nullcontext("http://[one"),
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
    carrier: str, operation: str, scheme: str, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(well) as here, OF_TUNNELS[trouble]() as proxy_url:
        monkeypatch.setenv("ALL_PROXY", proxy_url)
        there = f"{scheme}://{HOST}"
        api_url, token_url = (here.url, there) if operation == "token" else (there, here.url)
        with_token = credentials() if operation != "token" else auth(token_url)
        error = await error_of(carrier, api_url, with_token, timeout=0.5 if trouble == "says nothing" else 60.0)
        assert here.targets == []
    assert (error.operation, error.cause, error.status) == (operation, "proxy", None)
    for text in (hint(error), str(error)):
        assert "HTTPS_PROXY" in text
        assert "hush" not in text
        assert "NO_PROXY" in text


async def error_of(carrier: str, url: str, auth: ClientCredentials, **options: Any) -> Unavailable:
    async with api_over(carrier, url, auth, **options) as api:
        with pytest.raises(Unavailable) as caught:
            await api.presentations.get("p")
    return caught.value


async def test_proxy_does_not_make_a_platform_trusted(
    carrier: str, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is for another name, and the proxy is not to blame."""
    with answering(well, tls_for(authority, "other.test")) as server, proxying(server.url) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with answering(well) as tokens:
            error = await error_of(carrier, f"https://{HOST}", auth(tokens.url))
        assert proxy.lines == [f"CONNECT {HOST}:443"]
        assert server.targets == []
    assert error.cause == "certificate_name"


@pytest.mark.parametrize("carrier", ["libcurl"])
async def test_socks_proxy_is_not_blamed_for_the_platforms_certificate(
    carrier: str, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(well, tls_for(authority, "other.test")) as server, socks_proxy(server.url) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"socks5h://{proxy.address}")
        with answering(well) as tokens:
            error = await error_of(carrier, f"https://{HOST}", auth(tokens.url))
    assert error.cause == "certificate_name"


async def test_a_platform_that_takes_too_long_is_not_taken_for_the_proxy(
    carrier: str, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def stuck(*_: object) -> bytes:
        over.wait(60)
        return b""

    with answering(stuck, tls_for(authority, HOST)) as server, proxying(server.url) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        for seconds in (1.0, 5.0, 30.0):  # As many as it takes to get there.
            error = await error_of(carrier, f"https://{HOST}", credentials(), timeout=seconds)
            assert await asyncio.to_thread(proxy.hung_up.acquire, timeout=60)  # Although the platform says nothing yet.
            if server.targets:
                break
        over.set()
        assert len(server.targets) == 1
    assert (error.operation, error.cause) == ("presentations.get", "timeout")
