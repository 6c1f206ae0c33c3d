"""`credhook console`: serve the pages until told to stop."""

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import click
import structlog
import uvicorn

from credhook.console.app import create_console
from credhook.console.auth.login import Login
from credhook.console.auth.origins import is_loopback
from credhook.console.settings import ConsoleSettings
from credhook.listener.admin import bind
from credhook.settings import in_force
from credhook.stopping import stop_on

log = structlog.get_logger("credhook.console")

#: Seconds that requests under way get after SIGTERM.
_GRACE: Final = 5
#: Connections at once: a browser has six, and one for each live page.
_CONNECTIONS: Final = 200


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8_060, show_default=True, help="Port to listen on.")
def console(*, host: str, port: int) -> None:
    """Serve pages for operators: what happens, why attempts fail, events, endpoints, replay and erase.

    For the browsers of this machine, unless a proxy that speaks https stands before it: then CREDHOOK_CONSOLE_URL says
    where browsers find it. One logs in with CREDHOOK_CONSOLE_TOKEN, or else with a link that is printed here.
    """
    settings = ConsoleSettings()
    if not is_loopback(host) and not settings.url:
        raise click.UsageError(
            f"on {host} token and pages would pass unencrypted: put a proxy with https before the console, and set "
            "CREDHOOK_CONSOLE_URL to its URL; or reach it over `ssh -L`"
        )
    if not settings.token and not sys.stdout.isatty():
        raise click.UsageError(
            "there is no terminal to print a login link on: set CREDHOOK_CONSOLE_TOKEN, for instance to what "
            "`openssl rand -hex 16` prints"
        )
    try:
        listener = bind(host.strip("[]"), port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {reason}; choose another --host or --port"
        ) from error
    port = listener.getsockname()[1]
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    address = settings.url or f"http://{shown}:{port}"
    log.info("console_started", url=address, settings=in_force(settings))
    if settings.token:
        click.echo(f"credhook console: {address}")
    login = Login(settings.token, hand_out=lambda code: click.echo(f"log in, once: {address}/login?code={code}"))
    _serve(settings, login, listener)
    log.info("console_stopped")


def _serve(settings: ConsoleSettings, login: Login, listener: socket.socket) -> None:
    made = create_console(settings, login)
    config = uvicorn.Config(
        made.app,
        access_log=False,  # It writes queries, and a query may be a login link's.
        log_config=None,
        proxy_headers=False,  # Nothing that is decided depends on what a proxy says.
        server_header=False,
        ws="none",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE,
    )
    server = _Server(config)

    async def serve() -> None:
        loop = asyncio.get_running_loop()

        def stop(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(made.streams.stop)
            server.handle_exit(number, frame)

        stop_on(stop)
        await server.serve([listener])

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())


class _Server(uvicorn.Server):
    """uvicorn's, without its signals: before it waits for what was begun, streams have to end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the command."""
        yield
