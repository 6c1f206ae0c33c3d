"""The script that accepts deliveries: dedupe, ledger record, indexes and RQ job of a whole group in one atomic step.

The keys of single events are built from its arguments: a cluster, which would want them declared, is refused at start
(credhook/store/health.py).
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from hashlib import sha1
from typing import Final, NamedTuple

from credhook import store
from credhook.events import Event
from credhook.receiver.inbox.line import packed
from credhook.store import accepting, lua
from credhook.store.connection import REDIS_TIMEOUT

ACCEPT: Final = lua.load("accept_deliveries.lua", ORIGIN="delivery")
_SHA: Final = sha1(ACCEPT.encode(), usedforsecurity=False).hexdigest()


#: Gives Redis the script, which it keeps until it restarts.
LOAD: Final = packed("SCRIPT", "LOAD", ACCEPT)
#: Replies to `synced`.
SYNCED_REPLIES: Final = 2


def synced(queue: str) -> bytes:
    """Commands that ask whether all that was written is on the disk; the last reply begins with 1 if it is.

    WAITAOF speaks of what its own connection has written, and a group of duplicates writes nothing: what they repeat
    may have been written over a connection that broke before the disk had it. Therefore something is written.
    """
    patience = int(REDIS_TIMEOUT * 900)  # A little less than we would wait for an answer.
    return packed("SET", store.Keys(queue).synced, 1, "EX", 60) + packed("WAITAOF", 1, 0, patience)


class Outcome(Enum):
    """What became of a delivery; each but the last is acknowledged. The values are the script's replies."""

    ACCEPTED = "accepted"
    #: Seen before: nothing was created.
    DUPLICATE = "duplicate"
    #: Seen before, but as another type or for another resource: kept aside.
    CONFLICT = "conflict"
    #: Of a type that we do not know yet: kept for replay.
    QUARANTINED = "quarantined"
    #: Not acknowledged: somebody else has written to where its record would be.
    UNREADABLE = "unreadable"


#: As the script names them.
OUTCOMES: Final = {outcome.value.encode(): outcome for outcome in Outcome}


class Delivery(NamedTuple):
    """An event that was authenticated, its webhook-id, and the trace that it is of, if it is traced."""

    id: str
    event: Event
    trace: str | None = None


def accept(group: Sequence[Delivery], *, queue: str, retention: int) -> bytes:
    """The command that runs the script for a group; its reply is an outcome for each.

    It is packed by hiredis, in C: redis-py's pipeline takes 5 microseconds more for each event, measured, a tenth of
    what a delivery costs.
    """
    keys = accepting.keys(store.Keys(queue))
    arguments = accepting.arguments(group, queue=queue, retention=retention, now=datetime.now(UTC))
    return packed("EVALSHA", _SHA, len(keys), *keys, *arguments)
