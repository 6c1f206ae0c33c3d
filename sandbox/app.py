"""Assemble the sandbox: its routes, its faults, and its start page. The page is plain HTML without JavaScript."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from pydantic import JsonValue, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from credhook.sandbox import certificates, deliveries, resources, templates, users
from credhook.sandbox.events import EVENT_TYPES, possible
from credhook.sandbox.operations import document, operation, routes
from credhook.sandbox.tenant import TOKEN_PATH, Faults, Tenant, TokenIssuer, read_form
from credhook.sandbox.wire import answer_error

if TYPE_CHECKING:
    from jinja2 import Template

FAULTS = "/sandbox/faults"
#: Every fault, off.
OFF = Faults(**Faults().model_dump())

#: Rows of each table of the page, unless the table has few rows in any case.
ROWS = 20


@operation("GET", FAULTS)
def show_faults(tenant: Tenant) -> Faults:
    """Return every fault, on or off."""
    return tenant.faults.on


@operation("POST", FAULTS)
def change_faults(tenant: Tenant, body: Faults) -> Faults:
    """Set the faults that the body names, and leave the others as they are."""
    tenant.faults.on = tenant.faults.on.model_copy(update=body.model_dump(exclude_unset=True))
    return tenant.faults.on


@operation("DELETE", FAULTS)
def clear_faults(tenant: Tenant) -> Faults:
    """Switch off every fault, also the faults of the command line."""
    tenant.faults.on = OFF
    return OFF


def create_app(base_url: str, sender: deliveries.Sender, hosts: Sequence[str]) -> Starlette:
    """Assemble a sandbox that sends while it runs, and closes the state at its end."""
    tenant = Tenant(base_url, sender.state, TokenIssuer(time.time), sender.faults, sender.announce)
    load_fixtures(tenant)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with sender.sending():
            yield
        sender.state.close()

    return assemble(tenant, hosts=hosts, lifespan=lifespan)


def load_fixtures(tenant: Tenant) -> None:
    """Create templates and signing requests, if the state is new."""
    if tenant.state.count(templates.SandboxTemplate) == 0:
        with tenant.state.transaction():
            templates.load_fixtures(tenant)
            certificates.load_fixtures(tenant)


def assemble(
    tenant: Tenant, *, hosts: Sequence[str] = ("*",), lifespan: Lifespan[Starlette] | None = None
) -> Starlette:
    """Assemble the routes that answer for a tenant. Without a lifespan nothing is delivered."""

    async def page(request: Request) -> Response:
        if request.method != "POST":
            return HTMLResponse(render(tenant))
        try:
            resources.trigger_events(tenant, resources.EventRequest.model_validate(await read_form(request)))
        except (HTTPException, ValidationError) as problem:
            return HTMLResponse(render(tenant, str(problem)), 400)
        return RedirectResponse("/", 303)

    async def refuse(request: Request, error: Exception) -> Response:
        on = tenant.faults.on
        meta: dict[str, JsonValue] | None = {"sandbox": True, "note": None} if on.meta else None
        return await answer_error(request, error, with_source=on.error_source, meta=meta)

    app = Starlette(
        routes=[
            Route(TOKEN_PATH, tenant.tokens.grant, methods=["POST"]),
            *routes(tenant),
            Route("/openapi.json", lambda _: JSONResponse(document())),
            Route("/", page, methods=["GET", "POST"]),
        ],
        exception_handlers={HTTPException: refuse, Exception: refuse},
        lifespan=lifespan,
    )
    # A foreign web page whose name leads to this machine shows its name in `Host`.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    app.add_middleware(_own_pages)
    # A path with a slash too many gets 404, not a redirect.
    app.router.redirect_slashes = False
    return app


def _own_pages(app: ASGIApp) -> ASGIApp:
    """Refuse changes that a page of another site asks for, since events run handlers, and these call other systems."""
    refusal = PlainTextResponse("The request does not come from a page of the sandbox.", 403)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        own = (origin is None or origin.partition("://")[2] == headers.get("host")) and site in {"same-origin", "none"}
        await (app if own or scope["method"] in {"GET", "HEAD"} else refusal)(scope, receive, send)

    return answer


@cache
def _page() -> "Template":
    from jinja2 import Environment, StrictUndefined  # 0.1 s of the start of `credhook dev`.

    text = files("credhook.sandbox").joinpath("page.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(text)


def render(tenant: Tenant, problem: str = "") -> str:
    """Return the start page: the records, and a button for every event."""
    state, off = tenant.state, OFF.plain()
    return _page().render(
        problem=problem,
        faults={name: value for name, value in tenant.faults.on.plain().items() if value != off[name]},
        event_types=EVENT_TYPES,
        endpoints=state.all(deliveries.SandboxEndpoint),
        under_way=state.count(deliveries.PendingDelivery),
        attempts=state.latest(deliveries.DeliveryAttempt, ROWS),
        issuances=state.latest(resources.IssuanceRecord, ROWS),
        presentations=state.latest(resources.PresentationRecord, ROWS),
        possible=possible,
        templates=templates.list_templates(tenant),
        requests=state.all(certificates.SigningRequest),
        users=state.count(users.UserRecord),
    )
