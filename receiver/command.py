"""`credhook receiver`: one process that serves the application until it is told to stop."""

import asyncio
import signal
import sys

import click
import structlog
import uvicorn

from receiver.app import create_app
from receiver.inbox import Inbox, Unavailable
from receiver.ledger import open_redis
from receiver.settings import ReceiverSettings

log = structlog.get_logger("credhook.receiver")

#: Seconds between two looks at a Redis that was not there at start, doubling up to the second figure.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 10.0


@click.command()
def receiver() -> None:
    """Accept deliveries: verify, deduplicate, store, acknowledge.

    Everything is set by environment variables; the table in README.md lists them.
    """
    settings = ReceiverSettings()
    inbox = Inbox(open_redis(settings.redis_url.get_secret_value()), queue=settings.queue, retention=settings.retention)
    if settings.insecure and not settings.keys and settings.path_secret is None:
        log.warning("insecure", reason="CREDHOOK_INSECURE is set: whoever reaches the port is believed")
    config = uvicorn.Config(
        create_app(settings, inbox),
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.tls_certfile,
        ssl_keyfile=settings.tls_keyfile,
        access_log=False,  # It writes paths, and a path may be the secret.
        log_config=None,
        proxy_headers=False,  # Nothing we do depends on the client's address or scheme.
        server_header=False,
        timeout_graceful_shutdown=8,
    )
    # Once drained, uvicorn raises the signal that stopped it again; a stop that was asked for is a success.
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: None)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        sys.exit(runner.run(_serve(uvicorn.Server(config), inbox)))


async def _serve(server: uvicorn.Server, inbox: Inbox) -> int:
    """Serve at once, whether Redis is there or not: until it is, deliveries are answered with 503."""
    watch = asyncio.create_task(_report_redis(inbox))
    await server.serve()
    watch.cancel()
    return 0 if server.started else 1


async def _report_redis(inbox: Inbox) -> None:
    wait = _FIRST_WAIT
    while True:
        try:
            await inbox.ping()
        except Unavailable as reason:
            log.error("redis_unreachable", error=str(reason), retry_in=wait, hint="check REDIS_URL")  # noqa: TRY400  No traceback.
        else:
            log.info("redis_reachable")
            return
        await asyncio.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
