"""Which proxy stands before which server, as the environment has it."""

import re
import traceback
from collections.abc import Mapping

import pytest

from credhook.worker.api.http.exchange import Unanswered
from credhook.worker.api.http.transport import Proxies

VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD")
DIRECT, PROXIED = None, "http://all"
#: This host, which nothing need name, and what only looks like it.
HERE = ("localhost", "127.0.0.1", "127.8.9.10:8700", "[::1]", "[::1]:8700")
ALMOST_HERE = ("127.example", "127.0.0.1.example", "localhost.example", "10.0.0.7", "[fd00::1]")
#: What NO_PROXY says, a URL, and its proxy if all have one.
EXCEPTIONS = [
    ("api.example", "https://api.example", DIRECT),
    ("api.example", "https://API.example:8443/x", DIRECT),
    ("API.Example", "https://api.example", DIRECT),
    ("other.example, api.example", "https://api.example", DIRECT),
    ("example", "https://api.example", DIRECT),
    (".example", "https://api.example", DIRECT),
    ("*", "https://api.example", DIRECT),
    ("api.example:443", "https://api.example", DIRECT),
    ("api.example:80", "http://api.example", DIRECT),
    ("api.example:8443", "https://api.example:8443", DIRECT),
    ("10.0.0.7", "http://10.0.0.7", DIRECT),
    ("fd00::7", "http://[fd00::7]:8700", DIRECT),
    ("api.example:8443", "https://api.example", PROXIED),
    ("other.example", "https://api.example", PROXIED),
    ("pi.example", "https://api.example", PROXIED),
    ("api.example.org", "https://api.example", PROXIED),
    ("", "https://api.example", PROXIED),
]


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def found(monkeypatch: pytest.MonkeyPatch, url: str, environment: Mapping[str, str]) -> str | None:
    """The proxy that a request for the URL goes through."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Proxies().url_for(url)


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "https://api.example", DIRECT),
        ({"HTTPS_PROXY": ""}, "https://api.example", DIRECT),
        ({"HTTPS_PROXY": "http://one:3128"}, "https://api.example", "http://one:3128"),
        ({"https_proxy": "http://one:3128"}, "https://api.example", "http://one:3128"),
        ({"HTTPS_PROXY": "https://one"}, "https://api.example", "https://one"),
        ({"HTTPS_PROXY": "one:3128"}, "https://api.example", "http://one:3128"),
        ({"HTTPS_PROXY": "http://[fd00::1]:3128"}, "https://api.example", "http://[fd00::1]:3128"),
        ({"HTTPS_PROXY": "http://one"}, "http://api.example", DIRECT),
        ({"HTTP_PROXY": "http://two"}, "http://api.example", "http://two"),
        ({"HTTP_PROXY": "http://two"}, "https://api.example", DIRECT),
        ({"ALL_PROXY": "http://all"}, "http://api.example", "http://all"),
        ({"ALL_PROXY": "http://all"}, "https://api.example", "http://all"),
        ({"ALL_PROXY": "http://all", "HTTPS_PROXY": "http://one"}, "https://api.example", "http://one"),
        ({"ALL_PROXY": "socks5://all", "HTTPS_PROXY": "http://one"}, "https://api.example", "http://one"),
        *(({"ALL_PROXY": "http://all"}, f"{scheme}://{host}", DIRECT) for scheme in ("http", "https") for host in HERE),
        *(({"ALL_PROXY": "http://all"}, f"https://{host}", "http://all") for host in ALMOST_HERE),
        *(({"ALL_PROXY": PROXIED, "NO_PROXY": named}, url, proxy) for named, url, proxy in EXCEPTIONS),
    ],
)
def test_the_variable_for_the_scheme_comes_before_that_for_all_and_none_is_for_this_host_or_an_exception(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, proxy: str | None
) -> None:
    assert found(monkeypatch, url, environment) == proxy


@pytest.mark.parametrize(
    "proxy",
    [
        *("socks4://one", "socks5://one:1080", "socks5h://me:hush@one", "ftp://one"),
        *("http://", "http://one:port", "http://one:99999", "http://one:0", "http://[one"),
    ],
)
def test_what_is_no_http_proxy_is_refused_and_not_passed_by(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    with pytest.raises(Unanswered) as caught:
        found(monkeypatch, "https://api.example", {"HTTPS_PROXY": proxy, "ALL_PROXY": "http://all"})
    assert caught.value.cause == "proxy"
    assert not re.search(r"\bone\b", "".join(traceback.format_exception(caught.value)))
    assert found(monkeypatch, "http://api.example", {}) == PROXIED
    assert found(monkeypatch, "https://api.example", {"NO_PROXY": "api.example"}) == DIRECT


def test_each_server_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HTTPS_PROXY": "http://one", "HTTP_PROXY": "http://two", "NO_PROXY": "id.example:8443"}.items():
        monkeypatch.setenv(name, value)
    proxies = Proxies()
    for _ in range(2):
        for url, proxy in (
            ("https://api.example/a", "http://one"),
            ("https://api.example/b", "http://one"),
            ("http://api.example/a", "http://two"),
            ("https://id.example/token", "http://one"),
            ("https://id.example:8443/token", DIRECT),
        ):
            assert proxies.url_for(url) == proxy
