"""Endpoints: what the platform has registered, the plan, and a button that applies it."""

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

from credhook.console.auth import field, read_form, session_of
from credhook.console.rendering import page
from credhook.settings import settings_errors
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError
from credhook.worker.api.models import Endpoint
from credhook.worker.commands.endpoints import Plan, apply, described, lines, plan, shown, types_of
from credhook.worker.handlers.loading import CannotLoad, load
from credhook.worker.settings import EndpointSettings, HandlerSettings, PlatformSettings

log = structlog.get_logger("credhook.console")


class EndpointRow(NamedTuple):
    """An endpoint as the page shows it. The end of the URL is hidden, since it can be a secret."""

    id: str
    url: str
    types: str
    created_at: datetime | str | None


class NoPlan(Exception):
    """The plan cannot be made; the message has one line per reason."""


def routes() -> list[Route]:
    """Return the routes of the page and of its button."""

    async def show(request: Request) -> Response:
        return await _page(request)

    async def act(request: Request) -> Response:
        form = await read_form(request)
        try:
            async with AsyncApi.from_settings(_platform()) as api:
                registered = await api.endpoints.list()
                steps = await _plan(registered)
                if field(form, "seen") != _digest(steps):
                    return await _page(
                        request,
                        "The endpoints have changed since this plan was shown. Look again.",
                    )
                log.info(
                    "console_endpoints", who=session_of(request).who, create=int(steps.create), delete=len(steps.delete)
                )
                await apply(api, steps)
        except (ApiError, NoPlan) as error:
            return await _page(request, str(error))
        return RedirectResponse("/endpoints", 303)

    return [Route("/endpoints", show), Route("/endpoints", act, methods=["POST"])]


async def _page(request: Request, problem: str = "") -> Response:
    rows: list[EndpointRow] = []
    steps: Plan | None = None
    why: list[str] = []
    try:
        async with AsyncApi.from_settings(_platform()) as api:
            registered = await api.endpoints.list()
        rows = [EndpointRow(one.id, shown(one.url), described(types_of(one)), one.created_at) for one in registered]
        steps = await _plan(registered)
    except (ApiError, NoPlan) as error:
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
        raise NoPlan("\n".join(settings_errors(invalid))) from invalid


async def _plan(registered: Sequence[Endpoint]) -> Plan:
    try:
        url, handlers = EndpointSettings().public_url, HandlerSettings().handlers
        wanted = frozenset((await asyncio.to_thread(load, handlers)).types)
    except ValidationError as invalid:
        raise NoPlan("\n".join(settings_errors(invalid))) from invalid
    except CannotLoad as error:
        raise NoPlan(error.message) from error
    if not wanted:
        raise NoPlan("The loaded handlers want no event type. Set CREDHOOK_HANDLERS to your handlers.")
    return plan(url, wanted, registered)


def _digest(steps: Plan) -> str:
    """Return a digest of the plan, so that only the plan that was shown is applied."""
    said = [steps.url, *sorted(steps.wanted), str(steps.create), *(one.id for one in steps.delete)]
    return sha256("\n".join(said).encode()).hexdigest()
