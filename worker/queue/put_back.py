"""Putting an event back into the queue that is at home nowhere, whoever has found it."""

from datetime import UTC, datetime
from typing import Final, cast
from zlib import crc32

from redis import Redis

from credhook.store import Keys, lua
from credhook.store.job import job_fields, job_id

#: Milliseconds that an event may be between two homes: popped by RQ but not claimed yet, settled but not scheduled yet.
IN_TRANSIT: Final = 5_000
#: Attempts after which an event whose worker died under it has to wait before it is put back.
PATIENT_FOR: Final = 2

PUT_BACK: Final = lua.load("put_back.lua")


class PutBack:
    """Puts back the events of one queue."""

    def __init__(self, redis: Redis, *, queue: str, retention: int) -> None:
        """Prepare; a record that cannot be read is kept for `retention` seconds."""
        self._index = Keys(queue)
        self._retention = retention
        self._script = redis.register_script(PUT_BACK)

    def __call__(self, event_id: str, *, in_transit: int = IN_TRANSIT, first: bool = False) -> int | bytes:
        """Put one back: 1; 0 if it is at home, or has to wait; or what of its record cannot be read.

        `in_transit`: milliseconds that it may be between two homes; `first`: whether it goes to the head of the queue.
        """
        index, name = self._index, event_id.encode(errors="surrogateescape")
        # The same for all rounds, another for each event: those that died together should not return together.
        chance = crc32(name) / 2**32
        arguments: list[str | int | float | bytes] = [
            *(name, job_id(index.queue, event_id), in_transit, PATIENT_FOR, chance, self._retention),
            "LPUSH" if first else "RPUSH",
        ]
        for field, value in job_fields(index.queue, datetime.now(UTC)).items():
            arguments += field, value
        return cast("int | bytes", self._script(keys=[index.prefix], args=arguments))
