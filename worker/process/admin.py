"""The admin listener of `credhook worker`: what its processes count comes together here, in their supervisor."""

import asyncio
import functools
import threading

import click

from credhook.listener.admin import AdminListener, create_admin
from credhook.metrics.gathering import gathered
from credhook.metrics.target_figures import TargetFigures
from credhook.metrics.turn import Turn
from credhook.store import Keys
from credhook.store.connection import open_redis
from credhook.store.health import examine
from credhook.worker.process.platform_figures import PlatformFigures, turn_key
from credhook.worker.settings import WorkerSettings


def administrate(settings: WorkerSettings, address: str, folder: str) -> None:
    """Answer on `host:port` from now on, from a thread with a loop of its own; processes count into the folder.

    Raises:
        click.ClickException: the address is taken or not ours.
    """
    try:
        listener = AdminListener(address)
    except (OSError, OverflowError) as error:
        raise click.ClickException(f"cannot listen on {address}: {error}; set CREDHOOK_ADMIN") from error

    async def serve() -> None:
        client = open_redis(settings.redis_url.get_secret_value())
        queue_turn, platform_turn = Turn(client, Keys(settings.queue).exporter), Turn(client, turn_key(settings))
        examining = functools.partial(examine, client, strict=False)
        target = TargetFigures(examining, part="worker", certificate=settings.client_certfile)
        app = create_admin(
            client,
            examining,
            queue=settings.queue,
            registry=gathered(folder),
            turn=queue_turn,
            others=[target, PlatformFigures(client, settings, turn=platform_turn)],
        )
        await listener.serve(app, beside=[queue_turn.keep, platform_turn.keep])

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True, name="admin").start()
