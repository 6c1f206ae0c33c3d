"""Where a request goes: below the API's base URL, or nowhere."""

from dataclasses import replace
from typing import Any

import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as st

from credhook.worker.api.errors import InvalidRequest
from credhook.worker.api.operations import ISSUANCES, LIST_ENDPOINTS, PRESENTATIONS, BaseUrl, Call


def issuance(path: str) -> Call[Any]:
    """The call that reads issuance `i` where the settings say."""
    return replace(ISSUANCES.get, path=path)(id="i")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.example",
        "/tenant",
        "ftp://api.example",
        "https://",
        "https:///tenant",
        "https://me:pw@api.example",
        "https://me@api.example",
        "https://:pw@api.example",
        "https://api.example/?a=b",
        "https://api.example/#f",
        "https://api.example:99999",
        "https://api.example:port",
        "https://api.exa mple",
        "https://api.exa%2fmple",
        "https://[::1",
        "https://xn--\ud800",
    ],
    ids=ascii,
)
def test_a_base_url_is_an_origin_and_a_path(url: str) -> None:
    with pytest.raises(ValueError, match="the API's URL"):
        BaseUrl(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8700", "http://127.0.0.1:8700/me-creds/api/endpoints"),
        ("https://API.example:443/", "https://api.example/me-creds/api/endpoints"),
        ("https://api.example:80", "https://api.example:80/me-creds/api/endpoints"),
        ("http://api.example:443", "http://api.example:443/me-creds/api/endpoints"),
        ("https://api.example/a/b/", "https://api.example/a/b/me-creds/api/endpoints"),
        ("https://api.example/a/../b", "https://api.example/b/me-creds/api/endpoints"),
        ("https://api.example/ä b", "https://api.example/%C3%A4%20b/me-creds/api/endpoints"),
        ("https://api.example/a%2Fb", "https://api.example/a%2Fb/me-creds/api/endpoints"),
        ("http://[::1]:8700/x", "http://[::1]:8700/x/me-creds/api/endpoints"),
        ("https://[::1]", "https://[::1]/me-creds/api/endpoints"),
        ("https://bücher.example", "https://xn--bcher-kva.example/me-creds/api/endpoints"),
        ("https://an_odd.example", "https://an_odd.example/me-creds/api/endpoints"),
    ],
)
def test_every_path_goes_below_the_base_url(url: str, expected: str) -> None:
    assert BaseUrl(url).url(LIST_ENDPOINTS()) == expected


def test_a_query_follows_the_path() -> None:
    call = PRESENTATIONS.list(query={"filter[id]": "acme:p"})
    expected = "https://api.example/t/me-creds/api/presentations?filter%5Bid%5D=acme%3Ap"
    assert BaseUrl("https://api.example/t").url(call) == expected


@pytest.mark.parametrize(
    "path",
    [
        "/../{id}",
        "/a/./{id}",
        "/{id}/..",
        "/%2e%2e/{id}",
        "/a/.%2E/{id}",
        "/a?x=/{id}#f",
        "/ä/{id}",
        "/a b/{id}",
        "/a\\..\\{id}",
        "/a\r\nX: y/{id}",
        "/a/{id}\n",
        "/a/%/{id}",
        "/a/%zz/{id}",
        "/a?x=%2/{id}",
        "/a[1]/{id}",
    ],
    ids=ascii,
)
def test_a_path_from_the_settings_that_leads_elsewhere_is_refused_and_not_repeated(path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        BaseUrl("https://api.example/tenant").url(issuance(path))
    assert str(caught.value) == "issuances.get: its path leads elsewhere"
    assert (caught.value.operation, caught.value.status) == ("issuances.get", None)


@pytest.mark.parametrize("path", ["//evil.example/{id}", "/a//{id}", "/...{id}", "/a/..b/{id}", "/@evil.example/{id}"])
def test_what_only_looks_like_it_stays_below(path: str) -> None:
    url = BaseUrl("https://api.example/tenant").url(issuance(path))
    assert url == f"https://api.example/tenant{path.replace('{id}', 'i')}"
    assert yarl.URL(url, encoded=True).host == "api.example"


#: Where a path may lead: nowhere else, with or without a prefix.
BASES = [BaseUrl(url) for url in ("https://api.example", "https://api.example/tenant")]
PIECES = ["..", ".", "/", "//", "\\", "%2e", "%2F", "%", "@evil.example", "http://evil.example", ":80", "?", "#", "é"]


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
def test_whatever_the_path_its_url_is_of_the_same_origin_and_means_the_same_to_whoever_reads_it(path: str) -> None:
    call = Call(ISSUANCES.get, f"/{path}")
    for base in BASES:
        try:
            url = base.url(call)
        except InvalidRequest:
            continue
        assert url.isascii()
        assert str(yarl.URL(url).origin()) == "https://api.example"
        prefix = base.url(Call(ISSUANCES.get, "/"))
        normal = yarl.URL(url)  # With its dots resolved, and what needs no encoding decoded.
        assert str(normal).startswith(prefix)
        assert len(normal.raw_parts) == len(yarl.URL(url, encoded=True).raw_parts)
