"""Events through claim, fetch, dispatch, settle: a real Redis, the sandbox as the platform, workers as processes."""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import commands
import forked_process
from accepting import accept, everything, record
from harness import COMPLETED, DATA, Harness
from redis_keys import job_id
from rq import Queue
from rq.serializers import JSONSerializer
from waiting import until

from credhook.sandbox.local.environment import free_port, start_server


def test_a_handler_runs_with_the_details_and_the_event_is_settled(harness: Harness) -> None:
    harness.happens("m1", COMPLETED)
    harness.happens("m2", DATA)
    with harness.worker():
        assert harness.reaches("m1", "done").keys() == {
            "type", "resource", "state", "received", "settled", "h:test.first",
        }  # fmt: skip
        harness.reaches("m2", "done")
    assert sorted(harness.notes()) == ["first m1 1 completed", "first m2 1 verified"]
    assert 0 < harness.redis.ttl("credhook:credhook:event:m1") <= 7 * 86_400
    for key in ("credhook:credhook:open", "credhook:credhook:leases", "rq:queue:credhook", "rq:job:" + job_id("m1")):
        assert not harness.redis.exists(key), key


def test_a_plain_function_gets_the_synchronous_client(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("openid4vc.issuance.completed")
def plain(event, context):
    again = context.api.issuances.get(event.resource_id)
    note(again.id == event.details.id, context.idempotency_key)
""")
    harness.happens("m1")
    with harness.worker():
        harness.reaches("m1", "done")
    assert harness.notes() == ["True m1:test.plain"]


def test_a_detail_that_lags_behind_its_event_is_fetched_again(harness: Harness) -> None:
    harness.sandbox.faults(detailsLagMs=600_000)
    with harness.worker() as worker:
        harness.happens("m1")
        until(lambda: '"fetch_failed"' in worker.text, what="a look that came too early")
        harness.sandbox.faults(detailsLagMs=0)
        assert int(harness.reaches("m1", "done")["attempts"]) > 1
    assert len(harness.notes()) == 1


def test_server_errors_and_an_expired_token_are_survived(harness: Harness) -> None:
    harness.sandbox.faults(serverErrors=1)
    harness.happens("m1")
    with harness.worker():
        harness.reaches("m1", "done")
        harness.sandbox.faults(unauthorized=1)
        harness.happens("m2")
        assert "attempts" not in harness.reaches("m2", "done")


def test_a_handler_that_has_run_is_not_run_again_for_its_neighbours_failure(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("*")
async def good(event, context):
    note("good", event.attempt)

@handlers.on("*")
async def bad(event, context):
    note("bad", event.attempt)
    if event.attempt < 3:
        raise Retry(after=0.1)
""")
    harness.happens("m1")
    with harness.worker():
        assert harness.reaches("m1", "done")["attempts"] == "3"
    assert harness.notes() == ["good 1", "bad 1", "bad 2", "bad 3"]


def test_what_a_handler_gives_up_is_kept_as_dead_with_the_reason(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("*")
async def good(event, context):
    note("good")

@handlers.on("*")
async def never(event, context):
    raise GiveUp("account is closed")
""")
    harness.happens("m1")
    with harness.worker():
        dead = harness.reaches("m1", "dead")
    assert dead["error"] == "test.never: account is closed"
    assert dead["h:test.good"].startswith("done ")
    assert harness.notes() == ["good"]
    assert harness.redis.zrange("credhook:credhook:dead", 0, -1) == [b"m1"]
    assert harness.redis.ttl("credhook:credhook:event:m1") > 0


def test_what_is_never_there_waits_and_ends_dead_with_its_status(harness: Harness) -> None:
    accept(harness.redis_url, "m1", COMPLETED, "iss_unknown")
    with harness.worker(CREDHOOK_MAX_ATTEMPTS="2") as worker:
        dead = harness.reaches("m1", "dead")
        assert (dead["attempts"], dead["error"]) == ("2", "NotFound 404")
        until(lambda: worker.text.count('"fetch_failed"') == 2, what="what is said of both attempts")


def test_a_handler_that_takes_the_process_with_it_is_given_up_after_the_last_attempt(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("openid4vc.issuance.completed")
async def deadly(event, context):
    note("run", event.attempt)
    import os
    os._exit(9)

@handlers.on("openid4vc.verification.data")
async def harmless(event, context):
    pass
""")
    harness.happens("m1")  # Alone: a death that it shares with another event costs neither an attempt.
    with harness.worker(CREDHOOK_MAX_ATTEMPTS="2") as worker:
        assert harness.reaches("m1", "dead")["error"] == "WorkerDied"
        assert worker.text.count('"worker_died"') == 2
        harness.happens("m2", DATA)
        harness.reaches("m2", "done")
        assert worker.stop() == 0
    assert harness.notes() == ["run 1", "run 2"]


def test_two_queues_of_one_redis_handle_the_same_webhook_ids_once_each(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("*")
async def first(event, context):
    import os
    note(os.environ.get("CREDHOOK_QUEUE", "credhook"), event.webhook_id)
""")
    ids = [f"m{number}" for number in range(10)] + ["m:1", "m.1"]
    for webhook_id in ids:
        accept(harness.redis_url, webhook_id, COMPLETED, harness.happens(webhook_id), queue="credhook-e")
    with harness.worker("one"), harness.worker("two", CREDHOOK_QUEUE="credhook-e"):
        until(lambda: not harness.redis.exists("credhook:credhook:open", "credhook:credhook-e:open"), what="the end")
    assert sorted(harness.notes()) == sorted(f"{queue} {one}" for queue in ("credhook", "credhook-e") for one in ids)
    ours = {key.decode() for key in harness.redis.scan_iter("credhook:*")}
    assert all(key.startswith(("credhook:credhook:", "credhook:credhook-e:")) for key in ours)


def test_a_lost_connection_does_not_cost_the_lease(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("*")
async def slow(event, context):
    note("begun")
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
    note("ended")
""")
    harness.happens("m1")
    with harness.worker(CREDHOOK_LEASE="9") as worker:
        until(harness.notes)
        for _ in range(3):
            harness.redis.client_kill_filter(_type="normal", skipme=True)
        lease = harness.redis.zscore("credhook:credhook:leases", "m1")
        until(lambda: harness.redis.zscore("credhook:credhook:leases", "m1") != lease, what="a renewal")
        (harness.folder / "go").touch()
        harness.reaches("m1", "done")
        assert "lease_lost" not in worker.text
    assert harness.notes() == ["begun", "ended"]


def test_a_worker_outlives_a_redis_that_is_read_only_for_a_while(harness: Harness) -> None:
    with harness.worker() as worker:
        until(lambda: '"worker_started"' in worker.text)
        harness.redis.replicaof("127.0.0.1", str(free_port()))
        try:
            until(lambda: '"redis_unusable"' in worker.text, within=60)
        finally:
            harness.redis.replicaof("NO", "ONE")
        harness.happens("m1")
        harness.reaches("m1", "done")


def test_a_handler_past_its_time_frees_the_worker_and_comes_back(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("openid4vc.issuance.completed")
async def stubborn(event, context):
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("will not go")

@handlers.on("openid4vc.verification.data")
async def other(event, context):
    note("other")
""")
    harness.happens("m1", COMPLETED)
    harness.happens("m2", DATA)
    with harness.worker(CREDHOOK_HANDLER_TIMEOUT="0.3"):
        assert harness.reaches("m1", "waiting")["error"] == "test.stubborn: HandlerTimeout"
        harness.reaches("m2", "done")
    assert "other" in harness.notes()


def test_stock_rq_tools_see_the_queue_and_stock_rq_worker_works_on_it(harness: Harness) -> None:
    harness.happens("m1")
    rq = str(Path(sys.executable).parent / "rq")
    url = ["--url", harness.redis_url]
    environment = {"PYTHONPATH": str(harness.folder), **harness.environment}
    info = forked_process.run(rq, "info", *url, "--raw")
    assert "queue credhook 1" in info.stdout
    worked = forked_process.run(
        rq, "worker", *url, "--burst", "--serializer", "json", "credhook", env=environment, cwd=harness.folder
    )
    assert worked.returncode == 0, worked.stderr
    harness.reaches("m1", "done")
    assert harness.notes() == ["first m1 1 completed"]


def test_claims_are_nowhere_at_rest_and_in_no_log(harness: Harness) -> None:
    canary = "Canary-7f3a"
    harness.plugin("""
@handlers.on("*")
async def careless(event, context):
    note("seen" if "Canary" in repr(event.details.credentials[0].attributes) else "unseen")
    context.log.info("looked", details=repr(event.details), whole=repr(event))
    raise ValueError(event.details.credentials[0].attributes)
""")
    harness.happens("m1", DATA, attributes={"name": canary})
    with harness.worker(CREDHOOK_LOG_LEVEL="debug") as worker:
        assert harness.reaches("m1", "waiting")["error"] == "test.careless: ValueError"
        assert canary not in everything(harness.redis)
    assert harness.notes()[0] == "seen"
    assert canary not in worker.text
    assert "handler_failed" in worker.text


def test_a_planted_job_is_refused(harness: Harness) -> None:
    queue = Queue("credhook", connection=harness.redis, serializer=JSONSerializer)
    planted = harness.folder / "planted"
    queue.enqueue("os.system", args=(f"touch {planted}",), job_id="evil")
    job = queue.enqueue("credhook.worker.process.jobs.process", args=("none",), job_id="callbacks")
    harness.redis.hset(job.key, mapping={"success_callback_name": "os.getcwd", "failure_callback_name": "os.getcwd"})
    harness.happens("m1")
    with harness.worker() as worker:
        harness.reaches("m1", "done")
        until(lambda: not harness.redis.exists("rq:job:callbacks"))
    assert '"jobs_refused"' in worker.text
    assert not planted.exists()
    assert not harness.redis.exists("rq:job:evil")
    assert 0 < harness.redis.ttl("credhook:credhook:refused:evil") <= 86_400
    assert "Traceback" not in worker.text


def test_an_event_whose_job_an_older_version_has_written_is_handled(harness: Harness) -> None:
    harness.happens("m1")
    older = zlib.compress(json.dumps(["worker.jobs.process", None, ["m1"], {}]).encode())
    assert harness.redis.hset(f"rq:job:{job_id('m1')}", "data", older) == 0
    with harness.worker():
        harness.reaches("m1", "done")


def test_an_event_that_rq_has_lost_is_put_back(harness: Harness) -> None:
    harness.happens("m1")
    harness.redis.delete("rq:queue:credhook", "rq:job:" + job_id("m1"))
    with harness.worker() as worker:
        harness.reaches("m1", "done")
        assert '"events_put_back"' in worker.text
    assert harness.notes() == ["first m1 1 completed"]


def test_a_retry_that_rq_has_lost_is_put_back(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("*")
async def second_time(event, context):
    note(event.attempt)
    if event.attempt == 1:
        raise Retry(after=600)
""")
    harness.happens("m1")
    with harness.worker():
        harness.reaches("m1", "waiting")
        until(lambda: harness.redis.zrem("rq:scheduled:credhook", job_id("m1")), what="RQ's schedule")
        harness.redis.hset("credhook:credhook:event:m1", "due", 1)  # Ten minutes pass.
        assert harness.reaches("m1", "done")["attempts"] == "2"


def test_a_plugin_that_does_not_import_ends_the_worker_with_its_name_and_2(harness: Harness) -> None:
    harness.plugin("import nothing_of_that_name\n")
    with harness.worker() as worker:
        assert worker.process.wait(60) == 2
    (line,) = worker.text.splitlines()
    assert "plugin" in line
    assert "nothing_of_that_name" in line


def test_a_worker_waits_for_a_redis_that_is_not_there_yet(harness: Harness) -> None:
    port = free_port()
    with harness.worker(REDIS_URL=f"redis://127.0.0.1:{port}/0") as worker:
        until(lambda: '"redis_unusable"' in worker.text)
        server = start_server(harness.folder, port)
        try:
            until(lambda: '"worker_started"' in worker.text)
        finally:
            server.terminate()
            server.wait()


def test_sigterm_finishes_the_event_at_hand_and_ends_with_0(harness: Harness) -> None:
    harness.plugin("""
@handlers.on("*")
async def slow(event, context):
    note("begun")
    await asyncio.sleep(1)
    note("ended")
""")
    harness.happens("m1")
    with harness.worker() as worker:
        until(harness.notes)
        assert worker.stop() == 0
    assert harness.notes() == ["begun", "ended"]
    assert record(harness.redis, "m1")["state"] == "done"


def test_the_command_line_shows_what_the_store_remembers(harness: Harness) -> None:
    resource_id = harness.happens("m1")
    with harness.worker():
        harness.reaches("m1", "done")

    def credhook(*arguments: str) -> commands.Done:
        return commands.credhook(*arguments, environment=harness.environment)

    (line,) = credhook("events", "list", "--json").stdout.splitlines()
    shown: dict[str, Any] = json.loads(line)
    assert shown.pop("cursor")
    assert (shown["webhook_id"], shown["resource_id"], shown["state"]) == ("m1", resource_id, "done")
    assert shown["handlers"] == {"test.first": "done"}
    assert shown["handler_milliseconds"]["test.first"] >= 0
    assert json.loads(credhook("events", "show", "m1", "--json").stdout) == {**shown, "history": [], "conflicts": []}
    assert "m1" in credhook("events", "list", "--state", "done").stdout
    assert "m1" not in credhook("events", "list", "--state", "dead").stdout
    missing = credhook("events", "show", "m2")
    assert missing.returncode == 1
    assert missing.stderr == "Error: the store has no event m2\n"
