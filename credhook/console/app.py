"""The console as an application: its pages behind its guard, and what an error looks like."""

import asyncio
import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import click
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from credhook.console.auth import pages as door
from credhook.console.auth.guard import Guard
from credhook.console.auth.login import Login
from credhook.console.auth.sessions import Sessions
from credhook.console.jobs.running import Jobs
from credhook.console.pages import actions, causes, endpoints, events, now
from credhook.console.pages import jobs as job_pages
from credhook.console.pages.ledger import Ledger
from credhook.console.pages.live import Streams
from credhook.console.settings import ConsoleSettings
from credhook.console.ui.rendering import page, static_routes
from credhook.store.health import unanswered


class Console(NamedTuple):
    """The application, and what has to end before the process can."""

    app: Starlette
    streams: Streams


def create_console(settings: ConsoleSettings, login: Login) -> Console:
    """The console; `login` says what opens it."""
    ledger = Ledger(settings)
    sessions = Sessions(lasts=settings.session)
    streams = Streams(sessions.goes_on)
    jobs = Jobs(ledger.redis, ledger.index)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(ledger.watch())
        yield
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        await asyncio.to_thread(jobs.stop)
        ledger.redis.close()

    app = Starlette(
        routes=[
            *static_routes(),
            *door.routes(login, sessions, url=settings.url, user=_user()),
            *now.routes(ledger, streams),
            *causes.routes(ledger, streams),
            *events.routes(ledger, streams),
            *actions.routes(ledger, jobs),
            *job_pages.routes(jobs, streams),
            *endpoints.routes(),
        ],
        middleware=[Middleware(Guard, sessions=sessions, url=settings.url)],
        exception_handlers=_HANDLERS,
        lifespan=lifespan,
    )
    return Console(app, streams)


async def _refused(request: Request, error: HTTPException) -> Response:
    return _problem(request, error.status_code, error.detail)


async def _not_there(request: Request, error: click.ClickException) -> Response:
    return _problem(request, 404, error.message)


async def _no_redis(request: Request, error: Exception) -> Response:
    return _problem(request, 503, unanswered(error))


#: Starlette types every handler for Exception.
_HANDLERS: Final[dict[Any, Any]] = {
    HTTPException: _refused,
    click.ClickException: _not_there,
    RedisError: _no_redis,
}


def _problem(request: Request, status: int, what: str) -> Response:
    title = HTTPStatus(status).phrase.capitalize()
    return page(request, "problem.html", status, title=title, what=what)


def _user() -> str:
    """Who has started the console, for those who say no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        return "operator"
