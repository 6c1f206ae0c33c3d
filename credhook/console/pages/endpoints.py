"""Endpoints: what the platform has registered, what ought to be, and the button that makes it so."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import structlog
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from credhook.console.auth.forms import field, read_form
from credhook.console.auth.sessions import session_of
from credhook.console.ui.rendering import page
from credhook.worker.api.calls.errors import ApiError
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.models import Endpoint
from credhook.worker.commands.endpoints import Plan, apply, described, lines, plan, shown, types_of
from credhook.worker.handlers.loading import CannotLoad, load
from credhook.worker.settings import EndpointSettings, HandlerSettings, PlatformSettings
from credhook.wrong_settings import setting_errors

log = structlog.get_logger("credhook.console")


class Row(NamedTuple):
    """An endpoint as the page shows it: without the end of a URL that may be a secret."""

    id: str
    url: str
    types: str
    created_at: datetime | str | None


class Cannot(Exception):
    """There is no plan; the message says why, in one line for each reason."""


def routes() -> list[Route]:
    """The page, and what its button posts to."""

    async def show(request: Request) -> Response:
        return await _page(request)

    async def make_so(request: Request) -> Response:
        form = await read_form(request)
        try:
            async with AsyncApi.from_settings(_platform()) as api:
                registered = await api.endpoints.list()
                steps = await _plan(registered)
                if field(form, "seen") != _digest(steps):
                    return await _page(request, "What is registered has changed since the plan was shown. Look again.")
                log.info(
                    "console_endpoints", who=session_of(request).who, create=int(steps.create), delete=len(steps.delete)
                )
                await apply(api, steps)
        except (ApiError, Cannot) as error:
            return await _page(request, str(error))
        return RedirectResponse("/endpoints", 303)

    return [Route("/endpoints", show), Route("/endpoints", make_so, methods=["POST"])]


async def _page(request: Request, problem: str = "") -> Response:
    rows: list[Row] = []
    steps: Plan | None = None
    why: list[str] = []
    try:
        async with AsyncApi.from_settings(_platform()) as api:
            registered = await api.endpoints.list()
        rows = [Row(one.id, shown(one.url), described(types_of(one)), one.created_at) for one in registered]
        steps = await _plan(registered)
    except (ApiError, Cannot) as error:
        why = str(error).splitlines()
    context: dict[str, Any] = {
        "rows": rows,
        "steps": steps,
        "lines": list(lines(steps)) if steps else [],
        "seen": _digest(steps) if steps else "",
        "why": why,
        "problem": problem,
    }
    return page(request, "endpoints.html", 409 if problem else 200, title="Endpoints", **context)


def _platform() -> PlatformSettings:
    try:
        return PlatformSettings()
    except ValidationError as invalid:
        raise Cannot("\n".join(setting_errors(invalid))) from invalid


async def _plan(registered: Sequence[Endpoint]) -> Plan:
    try:
        url, handlers = EndpointSettings().public_url, HandlerSettings().handlers
        wanted = frozenset((await asyncio.to_thread(load, handlers)).types)
    except ValidationError as invalid:
        raise Cannot("\n".join(setting_errors(invalid))) from invalid
    except CannotLoad as error:
        raise Cannot(error.message) from error
    if not wanted:
        raise Cannot("The handlers that are loaded here want no event type; CREDHOOK_HANDLERS names them.")
    return plan(url, wanted, registered)


def _digest(steps: Plan) -> str:
    """Tells this plan from any other, so that only what was looked at is done."""
    said = [steps.url, *sorted(steps.wanted), str(steps.create), *(one.id for one in steps.delete)]
    return sha256("\n".join(said).encode()).hexdigest()
