"""`credhook console`: its settings, the application, and the server."""

import re
import sys
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import urlsplit

import click
import structlog
from pydantic import AfterValidator, Field, SecretStr
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
from credhook.settings import StoreSettings, in_force, matching
from credhook.store.connection import BRIEFLY
from credhook.store.errors import StoreError
from credhook.store.health import unanswered
from credhook.store.selection import UnknownCause
from credhook.supervisor import stop_on

log = structlog.get_logger("credhook.console")

#: Seconds that running requests get after SIGTERM.
_GRACE_SECONDS: Final = 5
_MAX_CONNECTIONS: Final = 200
#: Seconds until a page must have come: one that counts a million events takes its time.
_PAGE_SECONDS: Final = 300.0


def _origin(value: str) -> str:
    if not (re.fullmatch(r"https://[^\s/?#@]+/?", value) and urlsplit(value).hostname):
        raise ValueError("should be an https:// URL without a path")
    return value.rstrip("/").lower()


class ConsoleSettings(StoreSettings):
    """Settings of `credhook console`. Its endpoints page also reads the settings of `credhook endpoints`."""

    token: Annotated[
        SecretStr | None,
        # 22 characters of base64 are 128 bits.
        matching(r"(?s).{22,}", "should be 22 or more random characters, such as `openssl rand -hex 16` prints"),
    ] = Field(
        None,
        validation_alias="CREDHOOK_CONSOLE_TOKEN",
        description="Password of the console: 22 or more random characters. Default: the console prints a one-time "
        "login link.",
    )
    url: Annotated[str, AfterValidator(_origin)] | None = Field(
        None,
        validation_alias="CREDHOOK_CONSOLE_URL",
        description="The https URL of the console behind a proxy. Default: this machine's own addresses.",
    )
    session: int = Field(
        43_200,
        ge=60,
        le=30 * 86_400,
        validation_alias="CREDHOOK_CONSOLE_SESSION",
        description="Seconds that a login lasts.",
    )


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8_060, show_default=True, help="Port to listen on.")
def console(*, host: str, port: int) -> None:
    """Serve pages for operators: fleet, causes of failures, events, endpoints, replay and erase.

    The console serves browsers of this machine. Behind an https proxy, set CREDHOOK_CONSOLE_URL to its URL. Log in with
    CREDHOOK_CONSOLE_TOKEN, or with the one-time link that the console prints.
    """
    settings = ConsoleSettings()
    if not auth.is_loopback(host) and not settings.url:
        raise click.UsageError(
            f"--host {host} would serve pages unencrypted. Put an https proxy in front and set CREDHOOK_CONSOLE_URL to "
            "its URL, or use `ssh -L`"
        )
    if not settings.token and not sys.stdout.isatty():
        raise click.UsageError(
            "there is no terminal for the login link. Set CREDHOOK_CONSOLE_TOKEN, for example to the output of "
            "`openssl rand -hex 16`"
        )
    listener = bind_setting(f"{host}:{port}", "another --host or --port")
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    address = settings.url or f"http://{shown}:{listener.getsockname()[1]}"
    log.info("console_started", url=address, settings=in_force(settings))
    if settings.token:
        click.echo(f"credhook console: {address}")
    login = auth.Login(settings.token, hand_out=lambda code: click.echo(f"one-time login: {address}/login?code={code}"))
    app = create_console(settings, login)
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
    server.run(sockets=[listener])
    app.state.jobs.stop()
    log.info("console_stopped")


def create_console(settings: ConsoleSettings, login: auth.Login) -> Starlette:
    """Assemble the console; `login` checks passwords. The caller stops `state.jobs` at the end."""
    store = settings.open_store_sync(**BRIEFLY)
    sessions = auth.Sessions(seconds=settings.session)
    queue = jobs.Jobs(store)
    app = Starlette(
        routes=[
            Mount("/static", StaticFiles(packages=[("credhook.console", "ui/static")])),
            *auth.routes(login, sessions, settings.url),
            *pages.routes(store, settings.redis_address),
            *events.routes(store),
            *jobs.routes(store, queue),
            *endpoints.routes(),
        ],
        middleware=[
            auth.guard(sessions, settings.url),
            Middleware(RequestBodyLimitMiddleware, max_body_size=auth.MAX_FORM_BYTES),
        ],
        exception_handlers=dict.fromkeys((HTTPException, UnknownCause, StoreError), _problem),
    )
    app.state.jobs = queue
    return app


async def _problem(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        status, what = error.status_code, error.detail
    elif isinstance(error, UnknownCause):
        status, what = 404, str(error)
    else:
        status, what = 503, unanswered(error)
    return pages.page(request, "problem.html", status, title=HTTPStatus(status).phrase.capitalize(), what=what)
