"""Put unhandled events back for the handlers of this process.

Each process does so at its start and in each round of its sweeper. A worker without the handler may claim such an event
and settle it as unhandled again. The event then waits for the next round. It costs one claim per round and no attempt.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import structlog

from credhook.store import FETCH, HANDLER, ONLY, PENDING, State
from credhook.store.bulk import BATCH, batched
from credhook.store.replay import Replay, Settled
from credhook.store.store import SyncStore

log = structlog.get_logger("credhook.worker")

#: Maximum number of events of one type in one round.
PAGE: Final = 2_000


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
        for batch in batched(ours, BATCH):
            settled = [Settled(name.decode(errors="surrogateescape"), State.UNHANDLED) for name, _ in batch]
            outcomes = zip(batch, self._replay(settled, how="resume"), strict=True)
            put_back.update(event_type for (_, event_type), outcome in outcomes if outcome == b"replayed")
        if put_back:
            log.info("unhandled_put_back", count=put_back.total())
        for event_type, names in listed.items():
            is_whole = len(names) < PAGE
            self._start[event_type] = 0 if is_whole else self._start[event_type] + PAGE - put_back[event_type]
        return put_back.total()

    def _ours(self, events: Sequence[tuple[bytes, str]]) -> list[tuple[bytes, str]]:
        """Return those of the events, with their types, that a handler is here for, by when they came."""
        pipeline = self._store.redis.pipeline(transaction=False)
        for name, _ in events:
            pipeline.hgetall(self._store.keys.event.encode() + name)
        ours: list[tuple[int, bytes, str]] = []
        for (name, event_type), fields in zip(events, pipeline.execute(raise_on_error=False), strict=True):
            record = fields if isinstance(fields, dict) else {}  # A damaged record is no hash.
            names = _awaited(record)
            if not names or not self._wanted[event_type].isdisjoint(names):
                ours.append((int(record.get(b"received", 0)), name, event_type))
        return [(name, event_type) for _, name, event_type in sorted(ours)]


def _awaited(record: Mapping[bytes, bytes]) -> set[str]:
    """Return the handlers that an unhandled event waits for; none if any handler of its type will do."""
    fields = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in record.items()}
    pending = {name.removeprefix(PENDING) for name in fields if name.startswith(PENDING)} - {FETCH}
    return {name for name in pending if HANDLER + name not in fields} | set(fields.get(ONLY, "").split())
