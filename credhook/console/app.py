"""The console as an application: its routes behind the guard, and its error pages."""

import asyncio
import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import click
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from credhook.console import auth, endpoints, events, jobs, overview
from credhook.console.live import Streams, live_page
from credhook.console.overview import FleetWatch
from credhook.console.rendering import page, static_routes
from credhook.console.settings import ConsoleSettings
from credhook.store.health import unanswered
from credhook.worker.commands.history import causes

#: Causes on the page, the latest failures first.
_MAX_CAUSES: Final = 200


class Console(NamedTuple):
    """The application, and the streams that must end before the process can."""

    app: Starlette
    streams: Streams


def create_console(settings: ConsoleSettings, login: auth.Login) -> Console:
    """Assemble the console; `login` checks passwords."""
    fleet = FleetWatch(settings)
    sessions = auth.Sessions(seconds=settings.session)
    streams = Streams(sessions.is_alive)
    queue = jobs.Jobs(fleet.redis, fleet.keys)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        user = "operator"

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(fleet.watch())
        yield
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        await asyncio.to_thread(queue.stop)
        fleet.redis.close()

    app = Starlette(
        routes=[
            *static_routes(),
            *auth.routes(login, sessions, url=settings.url, user=user),
            *overview.routes(fleet, streams),
            *_cause_routes(fleet, streams),
            *events.routes(fleet, streams),
            *jobs.routes(fleet, queue, streams),
            *endpoints.routes(),
        ],
        middleware=[Middleware(auth.AccessGuard, sessions=sessions, url=settings.url)],
        exception_handlers=_HANDLERS,
        lifespan=lifespan,
    )
    return Console(app, streams)


def _cause_routes(fleet: FleetWatch, streams: Streams) -> list[Route]:
    """Return the routes of the causes page: failures grouped by handler, error and place."""

    async def read() -> dict[str, Any]:
        return {"causes": await fleet.ask(partial(causes, retention=fleet.retention, limit=_MAX_CAUSES))}

    return live_page("/causes", "causes", streams, read)


def _problem(request: Request, status: int, what: str) -> Response:
    return page(request, "problem.html", status, title=HTTPStatus(status).phrase.capitalize(), what=what)


async def _refused(request: Request, error: HTTPException) -> Response:
    return _problem(request, error.status_code, error.detail)


async def _not_found(request: Request, error: click.ClickException) -> Response:
    return _problem(request, 404, error.message)


async def _no_redis(request: Request, error: Exception) -> Response:
    return _problem(request, 503, unanswered(error))


#: Starlette types every handler for Exception.
_HANDLERS: Final[dict[Any, Any]] = {
    HTTPException: _refused,
    click.ClickException: _not_found,
    RedisError: _no_redis,
}
