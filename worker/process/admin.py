"""The admin listener of `credhook worker`: what its processes count comes together here, in their supervisor."""

import asyncio
import threading

import click
from prometheus_client.multiprocess import mark_process_dead

from credhook.listener.admin import AdminListener, create_admin, gathered
from credhook.redis.connection import open_redis
from credhook.redis.health import examine
from credhook.worker.settings import WorkerSettings


def administrate(settings: WorkerSettings, address: str, folder: str) -> None:
    """Answer on the address from now on, from a thread with a loop of its own.

    Args:
        settings: which Redis is examined, and which queue.
        address: `host:port`.
        folder: where the processes keep their counts.

    Raises:
        click.ClickException: the address is taken or not ours.
    """
    try:
        listener = AdminListener(address)
    except (OSError, OverflowError) as error:
        raise click.ClickException(f"cannot listen on {address}: {error}; set CREDHOOK_ADMIN") from error

    async def serve() -> None:
        client = open_redis(settings.redis_url.get_secret_value())
        app = create_admin(
            client, lambda: examine(client, strict=False), queue=settings.queue, registry=gathered(folder)
        )
        await listener.serve(app)

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True, name="admin").start()


def forget(process: int, folder: str) -> None:
    """Count what a process that has ended had under way no longer."""
    mark_process_dead(process, folder)  # type: ignore[no-untyped-call]  # It ships no types here.
