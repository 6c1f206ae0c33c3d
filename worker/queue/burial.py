"""What is written down when a worker process has died: which events it held, and whether one of them is the cause.

The process that takes its place notes it, told by the supervisor, which has no connection to Redis. Where a whole host
dies nobody does: its leases lapse by themselves, and speak against no event.
"""

from collections.abc import Sequence

import structlog
from redis import Redis
from redis.exceptions import RedisError

from credhook.ledger import Index
from credhook.worker.queue import scripts

log = structlog.get_logger("credhook.worker")


def bury(redis: Redis, queue: str, died: Sequence[str]) -> None:
    """Note these deaths, and let go of what the dead held.

    Args:
        redis: the ledger.
        queue: whose events.
        died: of each a worker's token, a colon, and 1 if nobody from outside has ended it.
    """
    script = redis.register_script(scripts.BURY)
    for one in died:
        token, _, own_fault = one.partition(":")
        try:
            held = script(keys=scripts.keys(Index(queue)), args=[token, own_fault])
        except RedisError as error:
            log.warning("death_not_noted", error=type(error).__name__)
        else:
            log.info("death_noted", events=held, own_fault=own_fault == "1")
