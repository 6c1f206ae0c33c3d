"""`credhook console`: the application and its server."""

import secrets
import sys
from http import HTTPStatus
from typing import Final

import click
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from credhook.console import auth, endpoints, events, jobs, pages
from credhook.listener.admin import bind_setting
from credhook.listener.server import Listener, Server
from credhook.settings import ConsoleSettings, in_force
from credhook.store.connection import BRIEFLY
from credhook.store.errors import StoreError
from credhook.store.health import unanswered
from credhook.store.selection import UnknownCause
from credhook.supervisor import stop_on

log = structlog.get_logger("credhook.console")

#: Seconds that running requests get after SIGTERM.
_GRACE_SECONDS: Final = 5
_MAX_CONNECTIONS: Final = 200
#: Seconds that a page may take. Counting a million events is slow.
_PAGE_SECONDS: Final = 300.0


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8_060, show_default=True, help="Port to listen on.")
def console(*, host: str, port: int) -> None:
    """Serve pages for operators: fleet, causes of failures, events, endpoints, replay and erase.

    The console serves browsers of this machine. Behind an https proxy, set CREDHOOK_CONSOLE_URL to its URL. Log in with
    your name and CREDHOOK_CONSOLE_PASSWORD, or open the link that the console prints.
    """
    settings = ConsoleSettings()
    if not auth.is_loopback(host) and not settings.url:
        raise click.UsageError(
            f"--host {host} would serve pages unencrypted. Put an https proxy in front and set CREDHOOK_CONSOLE_URL to "
            "its URL, or use `ssh -L`"
        )
    if not settings.password and not sys.stdout.isatty():
        raise click.UsageError(
            "there is no terminal for the link with a password. Set CREDHOOK_CONSOLE_PASSWORD, for example to the "
            "output of `openssl rand -hex 16`"
        )
    listener = bind_setting(f"{host}:{port}", "another --host or --port")
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    address = settings.url or f"http://{shown}:{listener.getsockname()[1]}"
    log.info("console_started", url=address, settings=in_force(settings))
    if settings.password:
        password, link = settings.password.get_secret_value(), address
    else:
        password = secrets.token_urlsafe()
        link = address.replace("://", f"://{auth.OPERATOR}:{password}@") + "/"
    click.echo(f"credhook console: {link}")
    app = create_console(settings, password)
    config = Listener(
        app,
        "console",
        body_bytes=auth.MAX_FORM_BYTES,
        connections=_MAX_CONNECTIONS,
        answer_seconds=_PAGE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = Server(config)
    stop_on(server.handle_exit)
    app.state.jobs.start()
    try:
        server.run(sockets=[listener])
    finally:
        app.state.jobs.close()
    log.info("console_stopped")


def create_console(settings: ConsoleSettings, password: str) -> Starlette:
    """Assemble the console. The caller starts `state.jobs`, and stops them at the end."""
    store = settings.open_store_sync(**BRIEFLY)
    queue = jobs.Jobs(store)
    app = Starlette(
        routes=[
            Mount("/static", StaticFiles(packages=[("credhook.console", "ui/static")])),
            *pages.routes(store, settings.redis_address),
            *events.routes(store),
            *jobs.routes(store, queue),
            *endpoints.routes(),
        ],
        middleware=[
            Middleware(auth.Guard, password=password, url=settings.url),
            Middleware(RequestBodyLimitMiddleware, max_body_size=auth.MAX_FORM_BYTES),
        ],
        exception_handlers=dict.fromkeys((HTTPException, UnknownCause, StoreError), _problem),
    )
    app.state.jobs = queue
    return app


async def _problem(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status, problem = error.status_code, error.detail
    elif isinstance(error, UnknownCause):
        status, problem = 404, str(error)
    else:
        status, problem = 503, unanswered(error)
    return pages.page(request, "problem.html", status, title=HTTPStatus(status).phrase.capitalize(), problem=problem)
