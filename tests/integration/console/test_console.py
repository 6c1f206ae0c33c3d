"""`credhook console` as its operators use it: pages, search, replay and erase, without JavaScript."""

import os
import pty
import re
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import httpx
import pytest
from redis import Redis
from rq.suspension import is_suspended

from credhook.sandbox.local.environment import free_port
from credhook.store import State
from credhook.store.erase import erasures
from credhook.store.selection import Cursor
from support import plain
from support.console.console import Console, act, ended, fields
from support.console.processes import announce_worker
from support.process.commands import invoke, start
from support.store.accepting import record
from support.store.stored_events import HANDLED, plant, plant_many, plant_traffic
from support.store.stores import EVENT, INDEX, store_on
from support.waiting import until
from support.worker.harness import Harness

PAGES = ("/", "/causes", "/events", "/endpoints", "/jobs")


@pytest.fixture
def ada(running: Console, redis_client: Redis) -> Iterator[httpx.Client]:
    """Somebody who has logged in, while there is no event."""
    with running.operator() as client:
        yield client


def test_every_page_is_there_before_anything_has_happened(ada: httpx.Client) -> None:
    for path in PAGES:
        answer = ada.get(path)
        assert (answer.status_code, answer.url.path) == (200, path)
        assert "<h1>" in answer.text
        assert ('data-refresh="5"' in answer.text) == (path in {"/", "/causes"})
        # Without a platform, the endpoints say what to set.
        assert ("CREDHOOK_API_URL: is not set" in answer.text) == (path == "/endpoints")
        assert "Apply" not in answer.text
    for name in ("console.css", "console.js", "icon.svg"):
        assert ada.get(f"/static/{name}").status_code == 200


def test_the_first_page_shows_what_happens_and_where_to_look(ada: httpx.Client, redis_client: Redis) -> None:
    plant_many(redis_client, 1_200, State.DEAD)
    plant(redis_client, "unhandled", State.UNHANDLED)
    plant(redis_client, "quarantined", State.QUARANTINED)
    plant(redis_client, "unreadable", State.UNREADABLE)
    plant(redis_client, "old", State.ACCEPTED, age=86_400)
    page = ada.get("/").text
    assert "1200 events were given up within a day" in page
    assert ">1\N{NARROW NO-BREAK SPACE}200</a>" in page
    for states in ("dead&amp;state=data_gone", "unhandled", "quarantined", "unreadable", "waiting&amp;state=accepted"):
        assert f'href="/events?state={states}">See them' in page


def figures(page: str) -> list[list[tuple[str, str]]]:
    """The numbers under the titles of the page's graphs."""
    return [re.findall(r"([a-z, ]+) <b>([^<]*)", legend) for legend in re.findall(r'<p class="legend">(.*?)</p>', page)]


def test_pages_draw_the_last_hour_and_the_last_day(ada: httpx.Client, redis_client: Redis) -> None:
    plant_traffic(redis_client)
    of_all, of_type = ada.get("/").text, ada.get("/events", params={"type": "issuance.completed"}).text
    of_handler = ada.get("/events", params={"handler": "a.bad"}).text
    hour, samples, day, _ = figures(of_all)
    assert [name for name, _ in hour] == ["arrived", "done", "failed", "given up"]
    assert samples == [("open, at most", "63"), ("the oldest at most", "92 s")]
    assert day[2] == hour[2] == ("failed", "140")
    assert figures(of_type) == [hour, day]
    assert [figure[:2] for figure in figures(of_handler)] == [hour[1:3], day[1:3]]
    for page, numbers in ((of_all, 4), (of_type, 2), (of_handler, 2)):
        assert page.count('<svg role="img"') == page.count('aria-label="Last') - 2 == numbers
        assert page.count("As a table") == 2
    assert "<svg" not in ada.get("/events").text


def test_workers_are_suspended_and_resumed(running: Console, ada: httpx.Client, redis_client: Redis) -> None:
    assert 'action="/suspend"' in ada.get("/").text
    suspended = ada.post("/suspend")
    assert (suspended.url.path, is_suspended(redis_client)) == ("/", 1)
    assert "stopped all workers</strong> <span>run `rq resume`</span> <form" in suspended.text
    assert 'action="/suspend"' not in suspended.text
    assert 'action="/suspend"' in ada.post("/resume").text
    assert not is_suspended(redis_client)
    for event in ("console_suspend", "console_resume"):
        assert [line["who"] for line in running.told(event=event)] == ["ada"]


def test_missing_workers_are_acknowledged_on_the_page(ada: httpx.Client, redis_client: Redis) -> None:
    announce_worker(redis_client, "w.s.1")
    announce_worker(redis_client, "w.s.2", silent=80_000)
    (form,) = re.findall(r'<form method="post" action="/acknowledge">.*?</form>', ada.get("/").text)
    assert re.findall('value="([^"]*)"', form) == ["w.s.2"]
    # The page was shown before the first worker fell silent, so it is not acknowledged.
    announce_worker(redis_client, "w.s.1", silent=80_000)
    page = ada.post("/acknowledge", data={"worker": "w.s.2"}).text
    assert redis_client.hkeys(INDEX.announcements) == [b"w.s.1"]
    assert 'name="worker" value="w.s.1"' in page


def test_remedy_with_a_page_has_a_link(ada: httpx.Client, redis_client: Redis) -> None:
    plant_many(redis_client, 2, State.DEAD)
    plant(redis_client, "unhandled", State.UNHANDLED)
    page = ada.get("/").text
    assert (
        page.count('<a href="/causes">See the causes</a>') == page.count('<a href="/endpoints">See the plan</a>') == 1
    )


def test_a_search_leads_to_an_event_or_to_those_of_a_resource(ada: httpx.Client, redis_client: Redis) -> None:
    plant(redis_client, "msg+1", State.DEAD, resource="iss_1", ended=HANDLED, error="a.bad: ValueError")
    plant(redis_client, "msg_2", State.DONE, resource="iss_1")
    plant(redis_client, "msg_3", State.DONE, resource="iss_2")
    one = ada.get("/events", params={"q": " msg+1 "})
    assert str(one.url.path) == "/event"
    assert "a.bad: dead: ValueError" in one.text
    assert all(f'href="/{verb}?id=msg%2B1"' in one.text for verb in ("replay", "erase"))
    of_resource = ada.get("/events", params={"q": "iss_1"}).text
    assert [name in of_resource for name in ("msg+1", "msg_2", "msg_3")] == [True, True, False]
    assert "no events" in ada.get("/events", params={"q": "?"}).text.lower()
    unknown = ada.get("/event", params={"id": "msg_4"})
    assert unknown.status_code == 404
    assert "There is no such event. It was erased, or its retention has ended." in unescape(unknown.text)


def test_pages_of_events_follow_each_other_without_one_missing_or_twice(ada: httpx.Client, redis_client: Redis) -> None:
    plant_many(redis_client, 120, State.DONE)
    seen: list[str] = []
    path = "/events?state=done"
    assert "Replay these" not in ada.get("/events").text  # All there are.
    while path:
        text = ada.get(path).text
        assert ('href="/events?state=done">back to the newest' in text) == bool(seen)
        found = re.findall(r'href="/event\?id=(msg_\d+)"', text)
        assert 0 < len(found) <= 50  # However many there are.
        seen += found
        older = re.search(r'rel="next" href="([^"]+)"', text)
        path = older[1].replace("&amp;", "&") if older else ""
    assert seen == [f"msg_{number:05}" for number in reversed(range(120))]


def test_a_filter_that_cannot_be_read_says_which(ada: httpx.Client) -> None:
    answer = ada.get("/events", params={"type": "issuance.complete"})
    assert answer.status_code == 400
    assert "did you mean issuance.completed?" in answer.text
    assert ada.get("/events", params={"cause": "01234567"}).status_code == 404


def test_a_replay_counts_first_and_says_how_it_ended(running: Console, ada: httpx.Client, redis_client: Redis) -> None:
    plant_many(redis_client, 450, State.DEAD, ended=HANDLED)
    plant(redis_client, "other", State.DONE)
    assert "Replay 450 events?" in ada.get("/replay?state=dead").text
    plant(redis_client, "same", State.DONE)
    assert "1 is done already" in ada.get("/replay?id=other").text
    assert "2 are done already" in ada.get("/replay?id=other&id=same").text
    plant(redis_client, "later", State.DEAD, age=-60)  # It was not counted.
    assert "Replay 1 event?" in ada.get("/replay?id=later").text
    started = act(ada, "replay", ("state", "dead"))
    text = ended(ada, started.url)
    assert "Replayed 450." in text
    assert "data-refresh" not in text
    assert 'max="450" value="450"' in text
    assert redis_client.zcard(INDEX.open) == 450
    assert record(redis_client, "later")["state"] == "dead"
    assert "ada (console)" in ada.get("/event", params={"id": "msg_00007"}).text
    job = started.url.path.rpartition("/")[2]
    assert f'href="/jobs/{job}">replay' in ada.get("/jobs").text
    told = running.told(job=job)
    assert [line["event"] for line in told] == ["console_replay", "console_job_ended"]
    assert {line["who"] for line in told} == {"ada"}
    assert (told[1]["events"], told[1]["done"], told[1]["ended"]) == (450, 450, "done")


def test_an_erasure_wants_the_number_typed(ada: httpx.Client, redis_client: Redis) -> None:
    plant_many(redis_client, 3, State.DEAD)
    plant(redis_client, "other", State.DONE)
    redis_client.hset(INDEX.conflict + "other", "some.type r1", 1)
    for typed in ({"typed": "30"}, {"typed": ""}, {}):
        refused = act(ada, "erase", ("state", "dead"), **typed)
        assert refused.status_code == 400
        assert "Type the number of events exactly as it is shown." in refused.text
    assert redis_client.zcard(INDEX.dead) == 3
    assert "Erased 3." in ended(ada, act(ada, "erase", ("state", "dead"), ("resource", "r1"), typed="3 ").url)
    assert not redis_client.exists(INDEX.dead, INDEX.conflict + "other")
    assert record(redis_client, "other")
    assert [erasure["by"] for erasure in erasures(store_on(redis_client))] == ["ada (console)"]


@pytest.mark.parametrize("verb", ["replay", "erase"])
@pytest.mark.parametrize("change", ["one more", "another", "settled otherwise", "handled"])
def test_job_leaves_events_alone_that_changed_since_the_count(
    running: Console, ada: httpx.Client, redis_client: Redis, verb: str, change: str
) -> None:
    for name in ("m1", "m2"):
        plant(redis_client, name, State.DEAD, age=60)
    plant(redis_client, "open", State.ACCEPTED, age=60)
    asked = ada.get(f"/{verb}", params={"type": "issuance.completed"})
    typed = fields(asked.text, f"/{verb}") | {"typed": "3"}
    if change == "one more":
        plant(redis_client, "m3", State.DEAD, age=30)
    if change == "another":
        redis_client.delete(EVENT + "m2")
        plant(redis_client, "m3", State.DEAD, age=30)
    if change == "settled otherwise":
        plant(redis_client, "m2", State.DONE, age=60)
    if change == "handled":  # An open event may be claimed and wait again at any time.
        redis_client.hset(EVENT + "open", "state", State.WAITING)
    told = ended(ada, ada.post(f"/{verb}", data=typed).url)
    if change == "handled":
        assert "job-done" in told
        return
    assert "have changed since they were counted" in told
    logged = until(lambda: str(running.told()[-1].get("error", "")), what="the line in the log")
    assert "have changed since they were counted" in logged
    assert record(redis_client, "m1")["state"] == "dead"


def test_a_selection_that_ends_before_now_keeps_its_end(ada: httpx.Client, redis_client: Redis) -> None:
    plant(redis_client, "older", State.DEAD, age=7_200)
    plant(redis_client, "newer", State.DEAD, age=60)
    assert "job-done" in ended(ada, act(ada, "replay", ("state", "dead"), ("until", "1h")).url)
    assert [record(redis_client, name)["state"] for name in ("older", "newer")] == ["accepted", "dead"]


def test_after_a_cause_is_mended_what_waits_is_due_at_once(ada: httpx.Client, redis_client: Redis) -> None:
    plant(redis_client, "m1", State.WAITING, due="9999999999999")
    redis_client.hset(EVENT + "m1", "c:a.bad", "0badc0de")
    assert '<a class="id" href="/events?cause=0badc0de">' in ada.get("/event", params={"id": "m1"}).text
    assert "Replayed 1." in ended(ada, act(ada, "replay", ("cause", "0badc0de")).url)
    assert "due" not in record(redis_client, "m1")


@pytest.mark.parametrize("verb", ["replay", "erase"])
def test_never_all_events_at_once(ada: httpx.Client, redis_client: Redis, verb: str) -> None:
    plant_many(redis_client, 3, State.DEAD)
    for data in ({}, {"until": ""}, {"typed": "3", "counted": "3"}, {"after": str(Cursor(7))}):
        refused = ada.post(f"/{verb}", data=data)
        assert refused.status_code == 400
        assert "Select events first: set a filter on the events page." in refused.text
    assert ada.get(f"/{verb}").status_code == 400
    uncounted = ada.post("/replay", data={"state": "dead"})
    assert (uncounted.status_code, "Count the events first." in uncounted.text) == (400, True)
    assert redis_client.zcard(INDEX.dead) == 3


def test_a_job_can_be_stopped(running: Console, ada: httpx.Client, redis_client: Redis) -> None:
    plant_many(redis_client, 10_000, State.DEAD)
    job = act(ada, "replay", ("state", "dead")).url  # It takes fifty times as long as the next request.
    assert ada.post(f"{job.path}/stop").status_code == 200
    unknown = ada.post("/jobs/unknown/stop")
    assert unknown.status_code == 404
    assert "There is no such job. Jobs of earlier days are in the consoles' logs." in unescape(unknown.text)
    assert "job-stopped" in ended(ada, job)
    assert [line["who"] for line in running.told(event="console_job_stopped")] == ["ada"]
    assert 0 < redis_client.zcard(INDEX.dead) <= 10_000


def test_without_redis_the_pages_say_so_and_come_back(tmp_path: Path) -> None:
    with Console(tmp_path, f"redis://127.0.0.1:{free_port()}/0") as lonely, lonely.operator() as ada:
        assert "nothing listens there" in ada.get("/").text
        for path in ("/events", "/causes"):
            answer = ada.get(path)
            assert answer.status_code == 503
            assert "nothing listens there" in answer.text


def test_endpoints_are_planned_and_made_so_once(
    tmp_path: Path, harness: Harness, api: httpx.Client, swept: None
) -> None:
    url = "https://inbox.example/webhooks/abcdefghijklmnopqrstuvwxyz"
    settings = harness.environment | {"CREDHOOK_PUBLIC_URL": url, "PYTHONPATH": str(harness.folder)}
    with Console(tmp_path, harness.redis_url, CREDHOOK_QUEUE="q", **settings) as running, running.operator() as ada:
        for number in (1, 2):  # The plan would now delete an endpoint, and then another one in its place.
            page = ada.get("/endpoints").text
            assert "create  a new endpoint" in page
            api.delete(f"/me-creds/api/endpoints/credhook-{number - 1}-q")
            other = {"url": "https://inbox.example/old", "id": f"credhook-{number}-q"}
            assert api.post("/me-creds/api/endpoints", json=other).status_code == 201
            assert ada.post("/endpoints", data=fields(page, "/endpoints")).status_code == 409
        form = fields(ada.get("/endpoints").text, "/endpoints")
        applied = ada.post("/endpoints", data=form)
        assert "nothing to do" in applied.text
        assert "abcdefgh" not in applied.text
        assert 'Event types">all 10 event types</td><td data-label="Created"><time' in applied.text
        again = ada.post("/endpoints", data=form)
        assert again.status_code == 409
        assert "have changed since" in again.text
        (told,) = running.told(event="console_endpoints")
        assert (told["who"], told["create"], told["delete"]) == ("ada", 1, 1)


def test_endpoint_is_deleted_after_a_question(tmp_path: Path, harness: Harness, api: httpx.Client, swept: None) -> None:
    api.post("/me-creds/api/endpoints", json={"url": "https://old.example", "id": "old"}).raise_for_status()
    with Console(tmp_path, harness.redis_url, **harness.environment) as running, running.operator() as ada:
        form = fields(ada.get("/endpoints").text, "/endpoints/delete")
        assert form == {"id": "old"}
        assert "https://old.example" not in ada.post("/endpoints/delete", data=form).text
        assert ada.post("/endpoints/delete", data=form).status_code == 409
    assert api.get("/me-creds/api/endpoints").json() == []
    assert [line["endpoint"] for line in running.told(event="console_endpoint_deleted")] == ["old", "old"]


def test_handlers_that_want_no_type_are_no_reason_for_an_endpoint(
    tmp_path: Path, harness: Harness, api: httpx.Client, swept: None
) -> None:
    (harness.folder / "plugin.py").write_text("from credhook import Handlers\nhandlers = Handlers('none')\n")
    settings = harness.environment | {"CREDHOOK_PUBLIC_URL": "https://inbox.example", "PYTHONPATH": str(harness.folder)}
    api.post("/me-creds/api/endpoints", json={"url": "https://by-hand.example", "id": "by-hand"}).raise_for_status()
    with Console(tmp_path, harness.redis_url, **settings) as running, running.operator() as ada:
        page = ada.get("/endpoints").text
    assert "by-hand.example" in page
    assert "want no event type" in page
    assert "Apply" not in page


def test_console_without_a_password_prints_a_link_that_opens_it(tmp_path: Path, redis_url: str) -> None:
    leader, follower = pty.openpty()
    port = free_port()
    process = start(
        ["-m", "credhook", "console", "--host", "::1", "--port", str(port)],
        env={"PATH": os.environ["PATH"], "REDIS_URL": redis_url}, cwd=tmp_path,
        stdout=follower, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(follower)
    shown = ""
    try:
        while not (link := re.search(r"credhook console: (http://operator:[\w-]{43}@\[::1\]:(\d+)/)\r\n", shown)):
            shown += os.read(leader, 4_096).decode()
        assert link[2] == str(port)
        page = until(lambda: plain.get(link[1]), what="the first page")
        assert page.status_code == 200
        assert "Logged in as operator" in page.text
    finally:
        process.terminate()
        assert process.wait(60) == 0
        os.close(leader)


@pytest.mark.parametrize(
    ("arguments", "url", "said"),
    [
        ((), "", "Set CREDHOOK_CONSOLE_PASSWORD"),
        (("--host", "0.0.0.0"), "", "ssh -L"),
        (("--host", "0.0.0.0"), "https://console.example", "Set CREDHOOK_CONSOLE_PASSWORD"),  # Behind a proxy.
        (("--port", "70000"), "", "--port"),
    ],
)
def test_console_refuses_to_start_with_unsafe_options(
    tmp_path: Path, arguments: tuple[str, ...], url: str, said: str
) -> None:
    environment = {"PATH": os.environ["PATH"], "CREDHOOK_CONSOLE_URL": url}
    done = invoke("console", *arguments, environment=environment, folder=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
