"""Who may use the console: sessions, logins, and what a page of another site can do."""

import pytest
from pydantic import SecretStr
from starlette.datastructures import Headers

from credhook.console.auth import Login, Sessions, is_loopback, objection
from credhook.settings import ConsoleSettings
from support.process.fake_children import Clock

URL = "https://console.example"


def test_a_session_is_whose_it_was_begun_for_until_its_time_is_over() -> None:
    clock = Clock()
    sessions = Sessions(seconds=60, clock=clock)
    cookie = sessions.begin("ada")
    session = sessions.read(cookie)
    assert session is not None
    assert (session.who, session.until) == ("ada", 1_060)
    assert session.form_token not in {"", cookie}  # Pages show it.
    clock.now = 1_059.9
    assert sessions.read(sessions.begin("eve"))
    assert sessions.read(cookie) == session
    clock.now = 1_060
    assert sessions.read(cookie) is None
    assert sessions.read(sessions.begin("bob"))
    clock.now = 1_000  # What is over is forgotten.
    assert sessions.read(cookie) is None


def test_no_cookie_but_ours_is_read() -> None:
    sessions = Sessions(seconds=60)
    cookie = sessions.begin("ada")
    assert len(cookie) >= 43
    for forged in ("", "ada", cookie[:-1], cookie + "A", Sessions(seconds=60).begin("ada"), "\udc80"):
        assert sessions.read(forged) is None


def test_wrong_tries_of_an_address_are_limited_for_a_minute_and_lock_nobody_out() -> None:
    clock = Clock()
    login = Login(SecretStr("right"), clock=clock)
    for _ in range(3):
        assert [login.failed("10.0.0.1") for _ in range(12)] == [0] * 10 + [60] * 2
        assert [login.failed("10.0.0.2") for _ in range(5)] == [0] * 5
        assert login.succeeds("right")
        assert not login.succeeds("wrong")
        clock.now += 59
        assert login.failed("10.0.0.1") == 1
        clock.now += 1


def test_only_the_right_code_is_used_up() -> None:
    codes = list[str]()
    login = Login(None, hand_out=codes.append)
    assert [login.succeeds(given) for given in ("wrong", codes[0], codes[0])] == [False, True, False]
    assert len(set(codes)) == 2


def test_only_addresses_of_this_machine_need_no_encryption() -> None:
    names = ["localhost", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "10.1.2.3", "console.example", ""]
    assert [name for name in names if is_loopback(name)] == names[:4]


@pytest.mark.parametrize(
    ("method", "headers", "url", "refused"),
    [
        *(("GET", {"host": h}, None, False) for h in ("localhost", "127.0.0.1:8060", "[::1]:8060", "10.1.2.3")),
        *(("GET", {"host": h}, None, True) for h in ("e.example", "e.example:8060", "", "[", "localhost.e.example")),
        ("GET", {"host": "console.example"}, None, True),
        ("GET", {"host": "console.example"}, URL, False),
        ("GET", {"host": "other.example"}, URL, True),
        *(("POST", {"origin": one}, URL, False) for one in ("http://localhost:8060", URL)),
        ("POST", {"sec-fetch-site": "same-origin"}, URL, False),
        ("POST", {"origin": "http://localhost:8060", "sec-fetch-site": "same-origin"}, URL, False),
        *(("POST", {"origin": one}, URL, True) for one in ("null", "https://evil.example")),
        *(("POST", {"origin": one}, URL, True) for one in ("http://localhost:9999", "https://localhost:8060")),
        *(("POST", {"sec-fetch-site": one}, URL, True) for one in ("cross-site", "same-site", "none")),
        ("POST", {"origin": "http://localhost:8060", "sec-fetch-site": "cross-site"}, URL, True),
        ("POST", {}, URL, True),
    ],
)
def test_only_this_machine_and_the_configured_name_are_served_and_only_a_page_of_its_own_posts(
    method: str, headers: dict[str, str], url: str | None, refused: bool
) -> None:
    assert bool(objection(method, Headers({"host": "localhost:8060"} | headers), url)) == refused


@pytest.mark.parametrize(("url", "told"), [(None, "is not set"), (URL, f"says {URL}")])
def test_a_proxy_that_hides_its_own_name_is_told_what_to_set(url: str | None, told: str) -> None:
    headers = Headers({"host": "127.0.0.1:8060", "origin": "https://ops.example"})
    assert f"CREDHOOK_CONSOLE_URL {told}" in str(objection("POST", headers, url))


def test_the_url_is_an_origin_and_22_characters_are_a_token() -> None:
    settings = {"CREDHOOK_CONSOLE_TOKEN": "x" * 22, "CREDHOOK_CONSOLE_URL": "https://Console.Example:8443/"}
    assert ConsoleSettings.model_validate(settings).url == "https://console.example:8443"
