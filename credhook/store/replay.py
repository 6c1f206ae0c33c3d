"""Put settled events back into the queue."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from credhook.store.job import job_fields, job_id
from credhook.store.store import SyncStore

#: The script's outcome → words for an event that was replayed, or was left.
REPLAYED: Final = {"replayed": ""}
NOT_REPLAYED: Final = {
    "open": "open",
    "unknown_type": "of unknown type",
    "no_resource": "whose id cannot be fetched",
    "unrelated": "that the handler does not want",
    "elsewhere": "of another queue",
    "changed": "changed meanwhile",
    "missing": "not in the store",
    "unreadable": "whose record cannot be read",
}
#: Characters of an operator's name that a history keeps.
LONGEST_NAME: Final = 100

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
            "by": self._by[:LONGEST_NAME],
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
