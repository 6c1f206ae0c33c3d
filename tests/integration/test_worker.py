"""Events through claim, fetch, dispatch, settle: a real Redis, the sandbox as the platform, workers as processes."""

from accepting import accept
from harness import COMPLETED, DATA, HELD, Harness
from redis_keys import job_id
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


def test_what_is_never_there_waits_and_ends_dead_with_its_status(harness: Harness) -> None:
    accept(harness.redis_url, "m1", COMPLETED, "iss_unknown")
    with harness.worker(CREDHOOK_MAX_ATTEMPTS="2") as worker:
        dead = harness.reaches("m1", "dead")
        assert (dead["attempts"], dead["error"]) == ("2", "NotFound 404")
        until(lambda: worker.text.count('"fetch_failed"') == 2, what="what is said of both attempts")


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
    harness.plugin(HELD)
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
    assert harness.notes() == ["begun m1", "first m1"]


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
