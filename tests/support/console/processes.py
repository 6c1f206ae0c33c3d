"""Announcements of processes, as workers and receivers leave them in Redis."""

import json
from typing import Any, Final

from redis import Redis

from support.store.stores import INDEX

_PROCESS: Final[dict[str, Any]] = {"version": "0.2.0rc1", "pid": 4_712, "config_fingerprint": {}}
_HANDLERS: Final = (
    "accounts.open_account",
    "accounts.notify_customer_of_a_refusal",
    "reports.count",
    "risk.check_name",
)
#: Ms since each process was started.
_AGE: Final = 9_000_000


def announce_worker(redis: Redis, name: str, *, silent: int = 0, **fields: Any) -> None:
    """Leave the announcement of a worker that has been silent for so many ms."""
    worker = _PROCESS | {"handlers": dict.fromkeys(_HANDLERS, ()), "slots": 100, "in_flight": 7, "started": True}
    worker |= {"platform": {"key": "credhook:credhook:platform:0"}} | fields
    now = redis.time()[0] * 1_000
    redis.hset(INDEX.announcements, name, f"{now - _AGE} {now - silent} {json.dumps(worker)}")


def announce_receiver(redis: Redis) -> None:
    """Leave the announcement of a receiver."""
    receiver = _PROCESS | {"queue": "credhook", "host": "inbox-1", "durability": "strict", "idle": 1}
    receiver |= {"acknowledged": 13, "seconds": 10}
    now = redis.time()[0] * 1_000
    redis.hset(INDEX.receivers, "inbox-1:17", f"{now - _AGE} {now} {json.dumps(receiver)}")
