"""The console's door: nothing without a login, and nothing for pages of other sites."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from redis import Redis
from starlette.routing import Route

from credhook.console.auth import Login
from credhook.console.command import create_console
from credhook.settings import ConsoleSettings
from credhook.store import State
from support.console.console import TOKEN, Console, fields
from support.store.stored_events import plant_many
from support.store.stores import INDEX
from support.waiting import until

ROUTES = [
    route for route in create_console(ConsoleSettings(), Login(SecretStr(TOKEN))).routes if isinstance(route, Route)
]
READ = sorted(route.path for route in ROUTES if "GET" in (route.methods or ()) and route.path != "/login")
POSTED = sorted(route.path for route in ROUTES if "POST" in (route.methods or ()) and route.path != "/login")


@pytest.fixture
def ada(running: Console, redis_client: Redis) -> Iterator[httpx.Client]:
    """Somebody who has logged in, with three events that could be replayed."""
    plant_many(redis_client, 3, State.DEAD)
    with running.operator() as client:
        yield client


@pytest.fixture
def stranger(running: Console) -> Iterator[httpx.Client]:
    with running.visitor() as client:
        client.follow_redirects = False
        yield client


def test_there_are_pages_and_actions_to_guard() -> None:
    assert {"/", "/events", "/jobs/{id}"} <= set(READ)
    assert POSTED == ["/endpoints", "/erase", "/jobs/{id}/stop", "/logout", "/replay"]
    assert {*READ} & {*POSTED} == {"/endpoints", "/erase", "/replay"}  # Those show what they would do.


@pytest.mark.parametrize("path", [*READ, "/nowhere"])
def test_nothing_is_shown_without_a_login(stranger: httpx.Client, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/login")
    assert len(answer.content) < 20


@pytest.mark.parametrize("path", POSTED)
def test_nothing_is_done_without_a_login(stranger: httpx.Client, path: str) -> None:
    assert stranger.post(path, data={"state": "dead"}).status_code == 401


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("token", [None, "", "0" * 64])
def test_nothing_is_done_without_the_token_of_a_form(
    ada: httpx.Client, redis_client: Redis, path: str, token: str | None
) -> None:
    data = {"state": "dead", "typed": "3", "counted": "3"} | ({} if token is None else {"form_token": token})
    assert ada.post(path, data=data).status_code == 403
    assert redis_client.zcard(INDEX.dead) == 3


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"host": "evil.example"}])
@pytest.mark.parametrize("path", [*POSTED, "/login"])
def test_a_page_of_another_site_posts_nothing_though_it_knew_the_token(
    ada: httpx.Client, redis_client: Redis, path: str, headers: dict[str, str]
) -> None:
    data = fields(ada.get("/").text, "/logout") | {"state": "dead", "typed": "3", "counted": "3", "token": TOKEN}
    assert ada.post(path, data=data, headers=headers).status_code == 403
    assert redis_client.zcard(INDEX.dead) == 3
    assert ada.get("/").url.path == "/"


@pytest.mark.parametrize("path", ["/", "/login", "/nowhere", "/static/console.css", "/replay"])
def test_no_answer_can_be_framed_kept_or_made_to_run_a_script(
    ada: httpx.Client, stranger: httpx.Client, path: str
) -> None:
    for answer in (stranger.get(path), stranger.get(path, headers={"host": "evil.example"}), ada.get(path)):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert {"frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"} <= {*policy.split("; ")}
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        for name in ("referrer-policy", "cross-origin-opener-policy", "cross-origin-resource-policy"):
            assert answer.headers[name] == "same-origin"
        assert not re.search(r"<style|<script>| style=| on\w+=", answer.text)


def test_the_cookie_is_for_this_console_alone(stranger: httpx.Client) -> None:
    cookie = stranger.post("/login", data={"token": TOKEN}).headers["set-cookie"].lower()
    assert "; httponly" in cookie
    assert "; samesite=strict" in cookie
    assert "; path=/" in cookie
    assert "domain" not in cookie
    assert TOKEN.lower() not in cookie


def test_behind_https_it_is_sent_over_https_alone(tmp_path: Path, redis_url: str) -> None:
    behind = {"origin": "https://console.example", "host": "console.example"}
    settings = {"CREDHOOK_CONSOLE_URL": "https://console.example", "CREDHOOK_CONSOLE_SESSION": "600"}
    with Console(tmp_path, redis_url, **settings) as proxied, proxied.visitor() as client:
        client.follow_redirects = False
        cookie = client.post("/login", data={"token": TOKEN}, headers=behind).headers["set-cookie"]
        client.post("/login", data={"token": TOKEN, "who": "n" * 50}, headers=behind)
    assert cookie.startswith("__Host-")
    assert "; secure" in cookie.lower()
    assert "; max-age=600" in cookie.lower()
    assert [line["url"] for line in proxied.told(event="console_started")] == ["https://console.example"]
    assert [line["who"] for line in proxied.told(event="console_login")] == ["operator", "n" * 40]


def test_who_has_logged_out_is_out_with_the_same_cookie(running: Console, ada: httpx.Client) -> None:
    cookies = dict(ada.cookies)
    ada.post("/logout", data=fields(ada.get("/").text, "/logout"))
    with running.visitor() as thief:
        thief.cookies.update(cookies)
        assert thief.get("/events").url.path == "/login"
    assert '"console_logout"' in running.text


@pytest.mark.parametrize(
    ("asked", "led_to"),
    [
        ("/events?state=dead", "/events?state=dead"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/\t/evil.example", "/"),
    ],
)
def test_a_login_leads_to_the_page_that_was_asked_for_and_never_elsewhere(
    stranger: httpx.Client, asked: str, led_to: str
) -> None:
    page = stranger.get("/login", params={"next": asked}).text
    assert fields(page, "/login")["next"] == led_to
    form = stranger.post("/login", data={"token": TOKEN, "next": asked})
    assert form.headers["location"] == led_to
    assert stranger.get("/login", params={"next": asked}).headers["location"] == led_to  # There is a session.


def test_the_login_remembers_the_query_of_the_page_that_was_asked_for(stranger: httpx.Client) -> None:
    asked = "/events?state=dead&handler=a%26b"
    login = stranger.get(stranger.get(asked).headers["location"]).text
    assert fields(login, "/login")["next"] == asked
    assert stranger.get("/static/console.css").status_code == 200  # The login page needs it.


def test_a_form_that_is_too_large_is_not_read(ada: httpx.Client) -> None:
    assert ada.post("/replay", content=b"x" * 100_000).status_code == 413


def test_a_flood_of_strangers_shuts_no_operator_out_and_fills_no_disk(tmp_path: Path, redis_url: str) -> None:
    with Console(tmp_path, redis_url) as alone, alone.visitor() as client, ExitStack() as silent:
        tries = [client.post("/login", data={"token": "wrong"}, headers={"connection": "close"}) for _ in range(50)]
        assert [each.status_code for each in tries] == [403] * 10 + [429] * 40
        assert int(tries[-1].headers["retry-after"]) > 0
        assert "The token is wrong." in tries[0].text
        for _ in range(50):
            client.post("/erase", headers={"origin": "https://evil.example"})
        assert client.post("/login", data={"token": TOKEN}).url.path == "/"
        assert TOKEN not in alone.text
        assert alone.text.count("console_login_refused") == 30
        assert alone.text.count('"console_refused"') == 20
        for _ in range(210):  # More than the console serves. None of them ever asks for anything.
            silent.enter_context(socket.create_connection(("127.0.0.1", alone.port)))
        until(lambda: alone.answers(f"{alone.url}/login"), what="the end of silent connections")
