"""No claim, no secret and no message of an error is at rest, in a log or in a trace, whatever goes wrong.

Claims and credentials are given values that occur nowhere else, and are made to pass through every way of failing. Then
all of Redis is searched, also within what RQ compresses, and all that our processes have written, answered or exported.
"""

import base64
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from credhook.sandbox.local.environment import free_port
from support import plain
from support.console.console import Console
from support.process import commands
from support.process.trace_collector import Collector
from support.store.accepting import everything
from support.store.store_rules import EXPIRIES, pattern_of
from support.waiting import until
from support.worker.fleet_harness import Answer, Call, FleetHarness, presentation
from support.worker.stock_rq import OUR_JOBS, rq, stock_worker

DATA = "openid4vc.verification.data"
CLAIM, SECRET, TOKEN = "Canary-claim-7f3a", "Canary-secret-19bd", "Canary-token-c04e"
CANARY = re.compile(r"canary.{0,20}", re.IGNORECASE)

#: What a handler may do with what it was given, by the name of the event.
CARELESS = """
import logging, threading, warnings
import structlog
structlog.configure(processors=[structlog.processors.JSONRenderer()])  # Authors may: it would show messages.
logger = logging.getLogger("plugin")

def fail(claim):
    raise ValueError("Canary-message-52e8", claim)

class Fails:
    def __init__(self, claim):
        self.claim = claim

    def __del__(self):
        fail(self.claim)

async def background(claim):
    fail(claim)

async def calls_back(claim):
    asyncio.get_running_loop().call_soon(fail, claim)
    await asyncio.sleep(0.05)

@handlers.on("*")
async def careless(event, context):
    claim = event.details.credentials[0].attributes
    kind = event.webhook_id
    note("begun", kind)
    context.log.info("looked", details=repr(event.details), event_=repr(event), again=str(event.details.credentials))
    if event.attempt > 1 and kind == "replayed":
        return
    if kind == "logs":
        try:
            fail(claim)
        except ValueError:
            logger.exception("failed")
            context.log.exception("failed")
        raise ExceptionGroup("Canary-message-52e8", [ValueError(claim)])
    if kind == "background":
        asyncio.create_task(background(claim))
        asyncio.get_running_loop().call_soon(fail, claim)
        await asyncio.sleep(0.1)
        return
    if kind == "apart":
        thread = threading.Thread(target=fail, args=(claim,))
        thread.start()
        thread.join()
        Fails(claim)
        warnings.warn(str(claim))
        logger.warning("%d of them", claim)
        context.log.info("listed", stack=[1], exception={2: 3}, error=ValueError(claim))
        await asyncio.to_thread(lambda: asyncio.run(calls_back(claim)))
        return
    if kind == "notes":
        error = KeyError(claim)
        error.add_note(str(claim))
        raise error from ValueError(claim)
    if kind == "cancels":
        raise asyncio.CancelledError(str(claim))
    if kind == "asks":
        await context.api.users.by_external_identifier("Canary-user-7f3a")
    if kind in ("hangs", "killed"):
        await asyncio.sleep(600)
    if kind == "blocks" and event.attempt == 1:
        time.sleep(600)
    fail(claim)

@handlers.on("*")
def in_thread(event, context):
    if event.webhook_id == "thread":
        fail(event.details.credentials[0].attributes)
"""


@pytest.fixture
def rig(rig: FleetHarness, collector: Collector) -> Iterator[FleetHarness]:
    rig.stub.token = TOKEN
    rig.stub.answer = answer
    rig.environment |= {"CREDHOOK_CLIENT_SECRET": SECRET, "CREDHOOK_LOG_LEVEL": "debug"} | collector.environment
    rig.plugin(CARELESS)
    yield rig
    assert not [request for request in collector.received if CANARY.search(request.decode("latin-1"))]


#: What the platform answers besides presentations: errors that repeat what they should not, and things out of contract.
ANSWERS = {
    "pre_refused": Answer(400, {"errors": [{"status": "400", "detail": CLAIM, "title": CLAIM, "code": "E1"}]}),
    "pre_broken": Answer(500, {"errors": [{"status": "500", "detail": CLAIM}]}),
    "pre_unlike": Answer(200, {"data": {"id": "pre_unlike", "status": {"name": CLAIM}, "credentials": CLAIM}}),
    "pre_bare": Answer(200, CLAIM),
    "pre_forbidden": Answer(403, {"errors": [{"status": "403", "detail": CLAIM}]}),
}


def answer(call: Call) -> Answer:
    if call.resource == "pre_gone":
        return Answer(410, {"errors": [{"status": "410", "detail": CLAIM}]})
    if call.resource.startswith("Canary-user"):
        return Answer(404)
    return ANSWERS.get(call.resource) or presentation(call.resource, {"given": CLAIM, "born": {"in": CLAIM}})


PAGES = ("/", "/causes", "/events", "/endpoints", "/jobs", "/replay?state=dead", "/event?id=raises", "/nowhere")


def unpacked(value: Any) -> Iterator[str]:
    """All texts within a reply of Redis, and within what RQ has compressed in it."""
    if isinstance(value, (list, tuple, set)):
        for one in value:
            yield from unpacked(one)
    elif isinstance(value, dict):
        yield from unpacked(list(value.items()))
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
        with suppress(zlib.error):
            yield zlib.decompress(value).decode(errors="replace")
        with suppress(ValueError, zlib.error):
            yield zlib.decompress(base64.b64decode(value, validate=True)).decode(errors="replace")


def credhook(rig: FleetHarness, *arguments: str) -> str:
    """Return what a command prints, on either stream."""
    done = commands.invoke(*arguments, environment=rig.environment, folder=rig.folder)
    assert "Usage" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def assert_nowhere(rig: FleetHarness, *texts: str) -> None:
    """No canary in Redis, in any log, or in these texts."""
    at_rest = everything(rig.redis, lambda value: "\n".join(unpacked(value)))
    for text in (at_rest, rig.logs(), *texts):
        assert not CANARY.findall(text)


def test_when_a_handler_fails_in_any_way(rig: FleetHarness, collector: Collector) -> None:
    """Raises, logs what it caught, leaves a task behind, hangs; ends dead, is shown, replayed, counted."""
    port = free_port()
    names = ["raises", "logs", "background", "notes", "cancels", "asks", "thread", "hangs", "replayed"]
    rig.accept(*((name, DATA, f"pre_{name}") for name in names))
    settings = {
        "CREDHOOK_MAX_ATTEMPTS": "1",
        "CREDHOOK_HANDLER_TIMEOUT": "5",
        "CREDHOOK_SNAPSHOT_KEY": "Canary-key-of-thirty-two-characters",
        "CREDHOOK_ADMIN": f"127.0.0.1:{port}",
    }
    with rig.worker(**settings) as worker:
        until(lambda: any("hangs" in note.words for note in rig.notes()))
        assert rig.redis.exists("credhook:credhook:snapshot:pre_hangs")
        assert_nowhere(rig)
        rig.settles()
        metrics = plain.get(f"http://127.0.0.1:{port}/metrics").text
        assert "credhook_attempts" in metrics
        shown = [credhook(rig, "events", "show", name) for name in names]
        listed = credhook(rig, "events", "list", "--json")
        causes = credhook(rig, "causes", "--json")
        told = [credhook(rig, "events", "show", name, "--json") for name in names]
        assert causes.count("test.careless") >= 4
        assert "plugin.py:" in causes
        assert '"attempt": 1' in told[0]
        with Console(rig.folder, rig.redis_url, **rig.environment) as running, running.operator() as ada:
            pages = "".join(ada.get(path).text for path in PAGES) + running.text
        assert "careless ValueError" in pages
        assert_nowhere(rig, metrics, listed, causes, pages, *shown, *told)
        assert credhook(rig, "events", "replay", "--state", "dead").startswith("replayed")
        rig.settles()
        lasting = {pattern_of(key.decode()) for key in rig.redis.scan_iter("credhook:*") if rig.redis.ttl(key) < 0}
        assert [pattern for pattern in lasting if "never" not in EXPIRIES[pattern]] == []
        assert worker.stop() == 0
    assert {span.attributes.get("credhook.state") for span in collector.spans} >= {"dead", "done"}
    states = {name: fields["state"] for name, fields in rig.records(names).items()}
    assert set(states.values()) == {"dead", "done"}
    assert states["background"] == "done"
    for expected in ("handler_failed", "ValueError", "ExceptionGroup", "HandlerCrashed", "NotFound"):
        assert expected in worker.text
    assert_nowhere(rig)


def test_when_something_fails_that_python_itself_reports(rig: FleetHarness) -> None:
    """A thread, a finaliser, a warning, a line that cannot be made, a callback: Python prints unless told not to."""
    rig.accept(("apart", DATA, "pre_apart"))
    with rig.worker(CREDHOOK_LOG="console") as worker:
        rig.reaches("apart", "done")
        assert worker.stop() == 0
    for expected in ("thread_failed", "unraisable", "python_warning", "log_failed", "Exception in callback", "listed"):
        assert expected in worker.text
    assert_nowhere(rig)


def test_when_the_platform_fails_in_any_way(rig: FleetHarness) -> None:
    """Errors that repeat claims, answers out of contract, a breaker that opens, and data that is gone."""
    names = [resource.removeprefix("pre_") for resource in ANSWERS]
    rig.accept(*((name, DATA, f"pre_{name}") for name in (*names, "gone")))
    with rig.worker(CREDHOOK_MAX_ATTEMPTS="2") as worker:
        for name in names:
            rig.reaches(name, "dead")
        assert rig.record("broken")["p:fetch"] == "2 0"
        rig.reaches("gone", "data_gone")
        rig.accept(*((f"down_{number}", DATA, "pre_broken") for number in range(15)))
        until(lambda: '"platform_paused"' in worker.text, what="the breaker")
        until(lambda: ", breaker open for " in credhook(rig, "status"), what="since when")
        shown = [credhook(rig, "events", "show", name) for name in (*names, "gone")]
        causes = credhook(rig, "causes")
        assert "DataGone" in causes
        assert worker.stop() == 0
    assert "fetch_failed" in worker.text
    assert_nowhere(rig, causes, *shown)


@pytest.mark.parametrize("status", [200, 401, 500])
def test_when_the_token_endpoint_repeats_what_it_was_sent(rig: FleetHarness, status: int) -> None:
    rig.stub.grant = Answer(status, {"error": SECRET, "error_description": f"{SECRET} {TOKEN}", "expires_in": TOKEN})
    rig.accept(("m1", DATA, "pre_1"))
    with rig.worker() as worker:
        until(lambda: '"token_refused"' in worker.text, what="the refusal")
        until(lambda: "takes no events" in credhook(rig, "status"), what="its announcement")
        shown = credhook(rig, "status")
        called = credhook(rig, "api", "presentations", "get", "pre_1")
        assert ('"hint":"check ' in worker.text) == (status == 401)
        assert worker.stop() == 0
    assert_nowhere(rig, shown, called)


def test_when_a_worker_is_killed_or_blocks(rig: FleetHarness) -> None:
    """Its stack names places, no values."""
    rig.accept(("killed", DATA, "pre_killed"))
    with rig.worker("first") as first:
        until(lambda: any("killed" in note.words for note in rig.notes()))
        first.kill()
    assert_nowhere(rig)
    rig.accept(("blocks", DATA, "pre_blocks"))
    with rig.worker("second", CREDHOOK_HANDLER_TIMEOUT="2") as second:
        until(lambda: "loop_blocked" in second.text, within=60)
        assert "careless" in second.text
        rig.reaches("blocks", "waiting", within=60)
    assert_nowhere(rig)


def test_when_rq_itself_runs_the_jobs_or_looks_at_them(rig: FleetHarness) -> None:
    """Stock workers keep results and tracebacks of jobs that fail; ours never fail in their eyes."""
    rig.accept(("raises", DATA, "pre_raises"), ("notes", DATA, "pre_notes"))
    with stock_worker(rig, "--burst") as stock:
        assert stock.process.wait(60) == 0
    assert "handler_failed" in stock.text
    rig.accept(("killed", DATA, "pre_killed"), ("hangs", DATA, "pre_hangs"))
    with stock_worker(rig, *OUR_JOBS, CREDHOOK_HANDLER_TIMEOUT="2") as stock:
        rig.reaches("hangs", "waiting", within=60)
        rig.reaches("killed", "waiting", within=60)
        stock.kill()
    looked = rq("info", "--url", rig.redis_url)
    assert rig.redis.keys("rq:job:*")
    assert_nowhere(rig, looked)
