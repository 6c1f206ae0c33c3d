"""Read the causes of failures, and the events that have a cause now."""

from typing import Final, NamedTuple, cast

from credhook.store import BLAMED, LONGEST_WAIT, State
from credhook.store.bulk import batched
from credhook.store.history import number_of, text_of, time_of
from credhook.store.store import SyncStore

#: Records fetched in one round trip.
_PAGE: Final = 500


class Cause(NamedTuple):
    """A cause of failures. worker/queue/failure.py decides which failures share one.

    Attributes:
        id: eight hexadecimal digits.
        handler: the handler that failed, `fetch`, or `worker` if processes died.
        error: class and status, if there is a status.
        at: the author's function that failed last.
        open: events that have the cause now and will be tried again.
        given_up: events that have the cause now and are dead or data_gone.
        failures: attempts that it made fail, including those of events that are done now.
        since, version: the versions of credhook that failed first and last.
    """

    id: str
    handler: str
    error: str
    at: str
    open: int
    given_up: int
    failures: int
    first: str | None
    last: str | None
    since: str
    version: str


def causes(store: SyncStore, *, limit: int) -> list[Cause]:
    """Return the causes, the latest failure first."""
    latest = cast(
        list[tuple[bytes, float]], store.redis.zrange(store.keys.causes, 0, limit - 1, desc=True, withscores=True)
    )
    ids, now = [name.decode() for name, _ in latest], store.clock()
    forgotten, overdue = now - store.retention * 1_000, now - max(store.retention, LONGEST_WAIT) * 1_000
    pipeline = store.redis.pipeline(transaction=False)
    for cause_id in ids:
        pipeline.hgetall(store.keys.cause(cause_id))
        pipeline.zcount(store.keys.standing(cause_id), "-inf", f"({-overdue}")
        pipeline.zcount(store.keys.standing(cause_id), forgotten, "+inf")
    replies = pipeline.execute()
    found = []
    for cause_id, (_, last), fields, still_open, given_up in zip(
        ids, latest, replies[::3], replies[1::3], replies[2::3], strict=True
    ):
        if fields:
            text = {text_of(name): text_of(value) for name, value in fields.items()}
            where, since, version = (text.get(name, "") for name in ("at", "since", "version"))
            counts = still_open, given_up, number_of(text.get("failures")) or 0
            times = time_of(number_of(text.get("first"))), time_of(int(last))
            found.append(Cause(cause_id, text["who"], text.get("what", ""), where, *counts, *times, since, version))
    return found


def standing(store: SyncStore, cause_id: str) -> list[str] | None:
    """Return the webhook-ids of the events that have the cause now, or None if there is no such cause."""
    who = cast("bytes | None", store.redis.hget(store.keys.cause(cause_id), "who"))
    if who is None:
        return None
    found = []
    members = (member.decode() for member, _ in store.redis.zscan_iter(store.keys.standing(cause_id), count=_PAGE))
    for page in batched(members, _PAGE):
        pipeline = store.redis.pipeline(transaction=False)
        for member in page:
            pipeline.hmget(store.keys.event + member, "state", BLAMED + who.decode())
        # The record decides: after a crash the index can hold settled events.
        for member, (state, cause) in zip(page, pipeline.execute(), strict=True):
            if state not in {None, State.DONE.value.encode()} and cause == cause_id.encode():
                found.append(member)
    return found
