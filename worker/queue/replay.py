"""Put settled events back into the queue, for an operator or because a handler was added.

Each process puts back the unhandled events of its own handlers, at its start and in each round of its sweeper. A worker
without the handler may claim such an event and settle it as unhandled again. The event then waits for the next round.
It costs one claim per round and no attempt.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeAlias, cast

import structlog

from credhook.store import ONLY, State
from credhook.store.job import job_fields, job_id
from credhook.store.store import SyncStore

#: Characters of an operator's name that the history keeps.
_LONGEST_NAME: Final = 100


#: How an event starts when it is put back, see replay.lua; "" as if it had just been accepted.
How: TypeAlias = Literal["", "now", "renamed", "resume"]


class Settled(NamedTuple):
    """An event and its state. The event is put back only if it is still in this state."""

    event_id: str
    state: str


class Replay:
    """Puts back events of one queue. Pass a few hundred at once at most: Redis does nothing else meanwhile."""

    def __init__(self, store: SyncStore, *, by: str = "") -> None:
        """`by` names the operator in each event's history."""
        self._store = store
        self._by = by

    def __call__(
        self, events: Sequence[Settled], *, how: How = "", handler: str = "", types: Iterable[str] = ()
    ) -> Sequence[bytes]:
        """Put the events back, in this order. If Redis fails, some may have been put back.

        `handler`: run this handler, or "" for all. For a done event it runs alone. `types`: its event types. If they
        are unknown, events that it has ended for are put back.

        Returns:
            The outcome of each event: `replayed`, or the reason why it was left, see replay.lua.
        """
        queue = self._store.queue
        fields = job_fields(queue, datetime.now(UTC))
        wanted = "".join(f" {name} " for name in types)
        entry = {
            "by": self._by[:_LONGEST_NAME],
            "handler": handler,
            "now": how == "now",
            "renamed": how == "renamed",
        }
        history = json.dumps({"replayed": {name: value for name, value in entry.items() if value}})
        arguments: list[str | int | bytes] = [handler, wanted, how, history, len(fields)]
        for name, value in fields.items():
            arguments += name, value
        for event_id, state in events:
            arguments += event_id.encode(errors="surrogateescape"), job_id(queue, event_id), state
        return cast(Sequence[bytes], self._store.run("replay", arguments))


log = structlog.get_logger("credhook.worker")

#: Events of one type in one round at most; and events in one script, which keeps Redis busy for a few milliseconds.
PAGE: Final = 2_000
BATCH: Final = 200


class Unhandled:
    """The unhandled events of one queue, for a process that has handlers."""

    def __init__(self, store: SyncStore, *, wanted: Mapping[str, Collection[str]]) -> None:
        """Put back events of the types in `wanted`: event type → names of the handlers that this process has."""
        self._store = store
        self._replay = Replay(store)
        self._wanted = {event_type: frozenset(names) for event_type, names in wanted.items() if names}
        #: Number of events of a type, from the oldest on, that the next round leaves out: they wait for other workers.
        self._start = Counter[str]()

    def put_back(self) -> int:
        """Put back the oldest events that this process has a handler for, and return their number.

        Two processes that do so at once put back each event once.
        """
        pages = self._store.redis.pipeline(transaction=False)
        for event_type in self._wanted:
            start = self._start[event_type]
            pages.zrange(self._store.keys.unhandled + event_type, start, start + PAGE - 1)
        listed = dict(zip(self._wanted, pages.execute(), strict=True))
        ours = self._ours([(name, event_type) for event_type, names in listed.items() for name in names])
        put_back = Counter[str]()
        for batch in (ours[start : start + BATCH] for start in range(0, len(ours), BATCH)):
            settled = [Settled(name.decode(errors="surrogateescape"), State.UNHANDLED) for name, _ in batch]
            outcomes = zip(batch, self._replay(settled, how="resume"), strict=True)
            put_back.update(event_type for (_, event_type), outcome in outcomes if outcome == b"replayed")
        if put_back:
            log.info("unhandled_put_back", count=put_back.total())
        for event_type, names in listed.items():
            is_whole = len(names) < PAGE
            self._start[event_type] = 0 if is_whole else self._start[event_type] + PAGE - put_back[event_type]
        return put_back.total()

    def _ours(self, found: Sequence[tuple[bytes, str]]) -> list[tuple[bytes, str]]:
        """Return those of the events, with their types, that a handler is here for, by when they came."""
        pipeline = self._store.redis.pipeline(transaction=False)
        for name, _ in found:
            pipeline.hmget(self._store.keys.event.encode() + name, "received", ONLY)
        ours: list[tuple[int, bytes, str]] = []
        for (name, event_type), fields in zip(found, pipeline.execute(raise_on_error=False), strict=True):
            received, only = fields if isinstance(fields, list) else (None, None)  # A damaged record is no hash.
            names = (only or b"").decode(errors="replace").split()
            if not names or not self._wanted[event_type].isdisjoint(names):
                ours.append((int(received or 0), name, event_type))
        return [(name, event_type) for _, name, event_type in sorted(ours)]
