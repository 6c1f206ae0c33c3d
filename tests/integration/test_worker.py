"""Events through claim, fetch, dispatch, settle: a real Redis, the sandbox as the platform, workers as processes."""

from accepting import accept
from harness import COMPLETED, Harness
from waiting import until


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
