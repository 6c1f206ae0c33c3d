"""Redis connections on which no cancellation is lost.

redis-py sends every command through `asyncio.wait_for`, which on Python 3.11 drops a cancellation that meets a finished
send: measured at one in four or five steps of whatever awaits Redis. The task then goes on as if nobody had wanted it
to end. Every send passes through here, whatever it belongs to: a command, a pipeline, a script, a subscription, the
greeting of a new connection, a question to a Sentinel.
"""

import asyncio
from collections.abc import Iterable

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from credhook.store.packing import Packed


class _Cancellable(AbstractConnection):
    """Looks after each send whether the task has been cancelled meanwhile."""

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Send, as redis-py does.

        Raises:
            asyncio.CancelledError: the task was cancelled meanwhile, whatever became of the send.
        """
        task = asyncio.current_task()
        # What was cancelled before may still clean up here; only a cancellation that comes meanwhile is ours to notice.
        before = task.cancelling() if task else 0
        try:
            await super().send_packed_command(command, check_health)
        finally:
            if task and task.cancelling() > before:
                await self.disconnect(nowait=True)  # Nobody is going to read the answer.
                raise asyncio.CancelledError


def heeding_cancellation(client: Redis) -> Redis:
    """Return the same client; its connections, which it has yet to open, lose no cancellation."""
    pool = client.connection_pool
    kind: type[AbstractConnection] = pool.connection_class
    pool.connection_class = type(f"Cancellable{kind.__name__}", (_Cancellable, Packed, kind), {})
    return client
