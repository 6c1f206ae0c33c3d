"""The console's door: nothing without the password, and nothing for pages of other sites."""

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from redis import Redis
from starlette.routing import Route

from credhook.console.command import create_console
from credhook.settings import ConsoleSettings
from credhook.store import State
from support.console.console import PASSWORD, Console
from support.store.stored_events import plant_many
from support.store.stores import INDEX
from support.waiting import until

ROUTES = [route for route in create_console(ConsoleSettings(), PASSWORD).routes if isinstance(route, Route)]
READ = sorted(route.path for route in ROUTES if "GET" in (route.methods or ()))
POSTED = sorted(route.path for route in ROUTES if "POST" in (route.methods or ()))
#: Forms that would replay or erase the three planted events.
FORM = {"state": "dead", "typed": "3", "total": "3", "counted": "3"}


@pytest.fixture
def ada(running: Console, redis_client: Redis) -> Iterator[httpx.Client]:
    """A browser whose user has logged in, with three events that could be replayed."""
    plant_many(redis_client, 3, State.DEAD)
    with running.operator() as client:
        yield client


@pytest.fixture
def stranger(running: Console) -> Iterator[httpx.Client]:
    with running.visitor() as client:
        yield client


def test_there_are_pages_and_actions_to_guard() -> None:
    assert {"/", "/events", "/jobs/{id}"} <= set(READ)
    buttons = [
        *("/acknowledge", "/endpoints", "/endpoints/delete", "/erase", "/jobs/{id}/stop"),
        *("/replay", "/resume", "/suspend"),
    ]
    assert buttons == POSTED
    assert {*READ} & {*POSTED} == {"/endpoints", "/erase", "/replay"}  # Their GET shows what a POST would do.


@pytest.mark.parametrize("path", [*READ, "/nowhere", "/static/console.js"])
def test_nothing_is_shown_without_the_password(stranger: httpx.Client, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Basic realm="credhook console", charset="UTF-8"'
    assert answer.text == "Log in with your name and the console's password.\n"


@pytest.mark.parametrize("path", POSTED)
def test_nothing_is_done_without_the_password(stranger: httpx.Client, redis_client: Redis, path: str) -> None:
    plant_many(redis_client, 3, State.DEAD)
    assert stranger.post(path, data=FORM).status_code == 401
    assert redis_client.zcard(INDEX.dead) == 3


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},  # Another port of this host.
        {"origin": ""},
        {"host": "evil.example"},
    ],
)
@pytest.mark.parametrize("path", POSTED)
def test_page_of_another_site_posts_nothing_with_the_operators_password(
    ada: httpx.Client, redis_client: Redis, path: str, headers: dict[str, str]
) -> None:
    assert ada.post(path, data=FORM, headers=headers).status_code == 403
    assert redis_client.zcard(INDEX.dead) == 3
    assert ada.get("/").status_code == 200


@pytest.mark.parametrize("path", POSTED)
def test_post_without_any_origin_is_refused(ada: httpx.Client, redis_client: Redis, path: str) -> None:
    del ada.headers["origin"]
    assert ada.post(path, data=FORM).status_code == 403
    assert redis_client.zcard(INDEX.dead) == 3


@pytest.mark.parametrize("path", ["/", "/nowhere", "/static/console.css", "/replay"])
def test_no_answer_can_be_framed_cached_or_made_to_run_a_script(
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


def test_console_behind_a_proxy_serves_its_url(tmp_path: Path, redis_url: str) -> None:
    behind = {"origin": "https://console.example", "host": "console.example"}
    with (
        Console(tmp_path, redis_url, CREDHOOK_CONSOLE_URL="https://console.example") as proxied,
        proxied.operator() as client,
    ):
        assert client.get("/", headers=behind).status_code == 200
        assert client.post("/jobs/unknown/stop", headers=behind).status_code == 404
        (started,) = proxied.told(event="console_started")
    assert started["url"] == "https://console.example"
    assert PASSWORD not in proxied.text


def test_pages_name_their_operator(running: Console) -> None:
    with running.operator("Zoë <b>") as zoe:
        assert 'title="Logged in as Zoë &lt;b&gt;"' in zoe.get("/jobs").text


def test_form_that_is_too_large_is_not_read(ada: httpx.Client) -> None:
    assert ada.post("/replay", content=b"x" * 100_000).status_code == 413


def test_wrong_password_is_refused_after_a_second(running: Console) -> None:
    with running.visitor() as client:
        began = time.monotonic()
        assert client.get("/", auth=("ada", "wrong")).status_code == 401
    assert time.monotonic() - began >= 1


def test_flood_of_guesses_shuts_no_operator_out_and_fills_no_disk(tmp_path: Path, redis_url: str) -> None:
    with Console(tmp_path, redis_url) as alone, alone.visitor() as guesser, alone.operator() as ada:
        with ThreadPoolExecutor(50) as threads:
            guesses = threads.map(lambda number: guesser.get("/", auth=("ada", f"{PASSWORD}{number}")), range(50))
            assert ada.get("/jobs").status_code == 200
            assert {answer.status_code for answer in guesses} == {401}
        for _ in range(50):
            ada.post("/erase", headers={"origin": "https://evil.example"})
        assert alone.text.count('"console_login_refused"') == 20
        assert alone.text.count('"console_refused"') == 20
        assert PASSWORD not in alone.text


def test_silent_connections_do_not_keep_operators_out(tmp_path: Path, redis_url: str) -> None:
    with Console(tmp_path, redis_url) as alone, alone.operator() as ada, ExitStack() as silent:
        for _ in range(210):  # The console serves 200.
            silent.enter_context(socket.create_connection(("127.0.0.1", alone.port)))
        until(
            lambda: ada.get("/jobs", headers={"connection": "close"}).is_success, what="the end of silent connections"
        )
