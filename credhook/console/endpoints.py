"""Endpoints: what the platform has registered, the plan, and buttons that apply it or delete an endpoint."""

import asyncio
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import structlog
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from credhook.console.auth import operator, read_form
from credhook.console.pages import page
from credhook.settings import EndpointSettings, HandlerSettings, PlatformSettings, settings_errors
from credhook.worker.api.client import AsyncApi, Sender
from credhook.worker.api.errors import ApiError
from credhook.worker.api.models import Endpoint
from credhook.worker.commands.api import RETRY_SECONDS
from credhook.worker.commands.endpoints import Plan, apply, described, filter_of, lines, plan, shown
from credhook.worker.handlers.loading import CannotLoad, load

log = structlog.get_logger("credhook.console")

#: Errors of the platform, the handlers or the settings, without which there would be a plan.
_FAILURES = (ApiError, CannotLoad, ValueError)


def _client() -> AsyncApi:
    return AsyncApi(Sender.from_settings(PlatformSettings(), retry_seconds=RETRY_SECONDS))


async def _page(request: Request, problem: str = "") -> Response:
    context: dict[str, Any] = {"rows": [], "steps": None, "lines": [], "seen": "", "why": [], "problem": problem}
    try:
        async with _client() as api:
            registered = await api.endpoints.list()
        # The end of the URL is hidden, since it can be a secret.
        context["rows"] = [
            (endpoint.id, shown(endpoint.url), described(filter_of(endpoint)), endpoint.created_at)
            for endpoint in registered
        ]
        steps = await _plan(registered)
    except _FAILURES as error:
        context["why"] = _reasons(error)
    else:
        context |= {"steps": steps, "lines": list(lines(steps)), "seen": digest(steps)}
    return page(request, "endpoints.html", 409 if problem else 200, title="Endpoints", **context)


async def _apply(request: Request) -> Response:
    form = await read_form(request)
    try:
        async with _client() as api:
            steps = await _plan(await api.endpoints.list())
            if form.get("seen") != digest(steps):
                return await _page(request, "The endpoints have changed since this plan was shown. Look again.")
            changes = {"create": int(steps.keep is None), "delete": len(steps.delete)}
            log.info("console_endpoints", who=operator(request), **changes)
            await apply(api, steps)
    except _FAILURES as error:
        return await _page(request, "\n".join(_reasons(error)))
    return RedirectResponse("/endpoints", 303)


async def _delete(request: Request) -> Response:
    endpoint = (await read_form(request)).get("id", "")
    try:
        async with _client() as api:
            log.info("console_endpoint_deleted", who=operator(request), endpoint=endpoint)
            await api.endpoints.delete(endpoint)
    except _FAILURES as error:
        return await _page(request, "\n".join(_reasons(error)))
    return RedirectResponse("/endpoints", 303)


def routes() -> list[Route]:
    """Return the routes of the page and of its buttons."""
    return [
        Route("/endpoints", _page),
        Route("/endpoints", _apply, methods=["POST"]),
        Route("/endpoints/delete", _delete, methods=["POST"]),
    ]


async def _plan(registered: Sequence[Endpoint]) -> Plan:
    ours, handlers = EndpointSettings(), HandlerSettings().handlers
    wanted = frozenset((await asyncio.to_thread(load, handlers)).types)
    if not wanted:
        raise ValueError("The loaded handlers want no event type. Set CREDHOOK_HANDLERS to your handlers.")
    return plan(ours.public_url, wanted, registered, ours.queue)


def _reasons(error: Exception) -> list[str]:
    return settings_errors(error) if isinstance(error, ValidationError) else str(error).splitlines()


def digest(steps: Plan) -> str:
    """Return a digest of the plan, so that only the plan that was shown is applied."""
    parts = [steps.url, *sorted(steps.wanted), str(steps.keep is None), *(endpoint.id for endpoint in steps.delete)]
    return sha256("\n".join(parts).encode()).hexdigest()
