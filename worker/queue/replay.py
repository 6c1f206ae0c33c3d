"""Puts events that are settled back into the queue: for an operator who asks for it, or because a handler has come."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple, cast

from redis import Redis

from credhook.store import Keys, lua
from credhook.store.job import job_fields, job_id

#: Characters of it that are kept.
_LONGEST_NAME: Final = 100

REPLAY: Final = lua.load("replay.lua")


class How(StrEnum):
    """What of an event is remembered when it is put back, as the script has it."""

    #: It is as if it had just been accepted.
    ANEW = ""
    #: Likewise, and waiting events become due at once.
    NOW = "now"
    #: It goes on where it stood.
    RESUME = "resume"


class Settled(NamedTuple):
    """An event, and the state in which it is to be put back: once it has left that state, it is left alone."""

    event_id: str
    state: str


class Replay:
    """Puts back events of one queue, up to a few hundred at once: Redis does nothing else meanwhile."""

    def __init__(self, redis: Redis, *, queue: str, by: str = "") -> None:
        """Put events into `queue`, whichever they came by; `by`: who wants it, for each event's history."""
        self._store_keys = Keys(queue)
        self._by = by
        self._script = redis.register_script(REPLAY)

    def __call__(
        self, events: Sequence[Settled], *, how: How = How.ANEW, handler: str = "", types: Iterable[str] = ()
    ) -> Sequence[bytes]:
        """Put them back, in this order; what became of each: `replayed`, or the script's word for why it was left.

        `handler`: the one that is to run, or "" for all; of a done event it runs alone. `types`: those that it wants,
        where that is known; otherwise it runs for events that it has ended for.

        Raises:
            RedisError: Redis failed; some may have been put back.
        """
        index = self._store_keys
        fields = job_fields(index.queue, datetime.now(UTC))
        wanted = "".join(f" {name} " for name in types)
        entry = {"by": self._by[:_LONGEST_NAME], "handler": handler, "now": how is How.NOW}
        history = json.dumps({"replayed": {name: value for name, value in entry.items() if value}})
        arguments: list[str | int | bytes] = [handler, wanted, how, history, len(fields)]
        for name, value in fields.items():
            arguments += name, value
        for event_id, state in events:
            arguments += event_id.encode(errors="surrogateescape"), job_id(index.queue, event_id), state
        return cast(Sequence[bytes], self._script(keys=[index.prefix], args=arguments))
