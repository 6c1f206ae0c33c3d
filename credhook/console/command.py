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
from credhook.console.auth import Login, is_loopback
from credhook.console.settings import ConsoleSettings
from credhook.listener.admin import bind
from credhook.settings import in_force
from credhook.supervisor import stop_on

log = structlog.get_logger("credhook.console")

#: Seconds that running requests get after SIGTERM.
_GRACE_SECONDS: Final = 5
#: A browser opens six connections, and one more per live page.
_MAX_CONNECTIONS: Final = 200


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8_060, show_default=True, help="Port to listen on.")
def console(*, host: str, port: int) -> None:
    """Serve pages for operators: fleet, causes of failures, events, endpoints, replay and erase.

    The console serves browsers of this machine. Behind an https proxy, set CREDHOOK_CONSOLE_URL to its URL. Log in with
    CREDHOOK_CONSOLE_TOKEN, or with the one-time link that the console prints.
    """
    settings = ConsoleSettings()
    if not is_loopback(host) and not settings.url:
        raise click.UsageError(
            f"--host {host} would serve pages unencrypted. Put an https proxy in front and set CREDHOOK_CONSOLE_URL to "
            "its URL, or use `ssh -L`"
        )
    if not settings.token and not sys.stdout.isatty():
        raise click.UsageError(
            "there is no terminal for the login link. Set CREDHOOK_CONSOLE_TOKEN, for example to the output of "
            "`openssl rand -hex 16`"
        )
    try:
        listener = bind(host.strip("[]"), port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {reason}. Choose another --host or --port"
        ) from error
    port = listener.getsockname()[1]
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    address = settings.url or f"http://{shown}:{port}"
    log.info("console_started", url=address, settings=in_force(settings))
    if settings.token:
        click.echo(f"credhook console: {address}")
    login = Login(settings.token, hand_out=lambda code: click.echo(f"one-time login: {address}/login?code={code}"))
    _serve(settings, login, listener)
    log.info("console_stopped")


def _serve(settings: ConsoleSettings, login: Login, listener: socket.socket) -> None:
    made = create_console(settings, login)
    config = uvicorn.Config(
        made.app,
        access_log=False,  # A query may hold a login code.
        log_config=None,
        proxy_headers=False,
        server_header=False,
        ws="none",
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
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
    """uvicorn without its signal handlers: the streams must end before it waits for requests."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command."""
        yield
