"""The options of libcurl for a proxy, as far as they are our own decision."""

import pycurl
import pytest

from credhook.worker.api.http.transport import proxy_options

VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("proxy", "port"),
    [("http://one", 80), ("one", 80), ("HTTP://one", 80), ("https://one", 0), ("socks5://one", 0)],
)
def test_http_proxy_without_a_port_gets_port_80(proxy: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    options = proxy_options("https://api.example")
    assert (options[pycurl.PROXY], options[pycurl.PROXYPORT]) == (proxy.encode(), port)


@pytest.mark.parametrize(
    ("environment", "origin", "proxy"),
    [
        ({"HTTPS_PROXY": "http://one", "ALL_PROXY": "http://all"}, "https://api.example", b"http://one"),
        ({"HTTPS_PROXY": "http://one", "ALL_PROXY": "http://all"}, "http://api.example", b"http://all"),
        ({"https_proxy": "http://one"}, "https://api.example", b"http://one"),
        ({"HTTP_PROXY": "http://two"}, "http://api.example", b"http://two"),
        ({"HTTP_PROXY": "http://two"}, "https://api.example", b""),
        ({"HTTP_PROXY": "http://two", "REQUEST_METHOD": "GET"}, "http://api.example", b""),  # From a client of CGI.
        ({"HTTPS_PROXY": ""}, "https://api.example", b""),
        ({}, "https://api.example", b""),
    ],
)
def test_variable_of_the_scheme_comes_before_all_proxy(
    environment: dict[str, str], origin: str, proxy: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_options(origin)[pycurl.PROXY] == proxy
