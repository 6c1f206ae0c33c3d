"""One check of URLs and one normal form, for settings, requests and answers."""

import pytest

from credhook.urls import checked_url, normal_url


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://a.example", None),
        ("HTTPS://A.Example:8443/x", None),
        ("https://127.0.0.1/x", None),
        ("https://[::1]:443/x/", None),
        ("https://a_b.example./x;y=1/%7Ez", None),
        ("https://büro.example/é", "https://xn--bro-hoa.example/%C3%A9"),
        ("https://büro.example:8443", "https://xn--bro-hoa.example:8443"),
    ],
)
def test_a_url_is_accepted_and_written_in_ascii(url: str, sent: str | None) -> None:
    assert checked_url(url, "https") == (sent or url)
    assert checked_url(f"{url}?a=é", "https", query=True).endswith("?a=%C3%A9")


@pytest.mark.parametrize(
    "url",
    [
        *("", "https://", "https:///x", "https://a b", "https://a.example/a b", "https://:443/a", "https://a..example"),
        *("https://:99999/", "https://a.example:99999/", "https://a.example:0/", "https://a.example:8x/"),
        *("https://[::1", "https://[x]/", "https://-a.example", "https://a%20b.example", "https://a.example\\x"),
        *("https://me:secret@a.example/", "https://a.example/x?y", "https://a.example/x#y", "https://a.example/\n"),
        *("http://a.example", "ftp://a.example", "a.example", '"https://a.example"', "https://a.example/x'"),
        *("https://" + "é" * 70 + ".example", "https://a.example\ud800"),
    ],
)
def test_a_text_that_is_not_a_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"^should be an https:// URL without credentials, query or fragment$"):
        checked_url(url, "https")


@pytest.mark.parametrize(
    "url",
    [
        *("https://a.example/x", "HTTPS://A.EXAMPLE/x", "https://a.example:443/x", "https://a.example./x"),
        *("https://a.example/x/", "https://a.example/%78", "https://me@a.example/x"),
    ],
)
def test_spellings_of_one_url_have_one_normal_form(url: str) -> None:
    assert normal_url(url) == normal_url("https://a.example/x")


@pytest.mark.parametrize("place", ["/a{}b", "/x?a={}b"])
def test_case_of_an_encoding_makes_no_other_url(place: str) -> None:
    upper, lower = (normal_url("https://a.example" + place.format(encoded)) for encoded in ("%2F%C3%A9", "%2f%c3%a9"))
    assert upper == lower


def test_other_urls_have_other_normal_forms() -> None:
    urls = [
        *("https://a.example/x", "http://a.example/x", "https://a.example:444/x", "https://b.example/x"),
        *("https://a.example/X", "https://a.example/x?y", "https://a.example/x%2F", "https://a.example", "https://[x"),
    ]
    assert len({normal_url(url) for url in urls}) == len(urls)
    assert normal_url("http://a.example:80/") == normal_url("http://a.example")
    assert normal_url("https://büro.example").netloc == normal_url("https://XN--BRO-HOA.example/").netloc
