"""The sandbox, assembled."""

import ssl
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Lifespan

from credhook.sandbox import certificates, page, templates
from credhook.sandbox.access import TOKEN_PATH, BrowserGuard, TokenIssuer
from credhook.sandbox.operations import OPERATIONS, document, operation, routes
from credhook.sandbox.sender import Sender, parse_key
from credhook.sandbox.tenant import Faults, FaultSwitch, StateFile, Tenant, utc_now
from credhook.sandbox.wire import ERROR_HANDLERS

FAULTS = "/sandbox/faults"


@operation("GET", FAULTS)
def show_faults(tenant: Tenant) -> Faults:
    """Return every fault, on or off."""
    return Faults(**tenant.faults.on.model_dump())


@operation("POST", FAULTS)
def change_faults(tenant: Tenant, body: Faults) -> Faults:
    """Switch the faults that are named."""
    tenant.faults.change(body)
    return show_faults(tenant)


@operation("DELETE", FAULTS)
def clear_faults(tenant: Tenant) -> Faults:
    """Switch every fault off."""
    tenant.faults.clear()
    return show_faults(tenant)


def create_app(
    *,
    base_url: str,
    signing_secrets: Sequence[str],
    authority: Path | None,
    state_file: Path | None,
    time_scale: float,
    faults: Faults,
    hosts: Collection[str],
) -> Starlette:
    """Assemble a sandbox with its sender. Without signing secrets, deliveries are unsigned.

    Raises:
        StateError: The state file cannot be used.
        OSError, ssl.SSLError: The authority's file cannot be read.
    """
    trust = ssl.create_default_context()
    if authority:
        trust.load_verify_locations(authority)
    state, switch = StateFile(state_file), FaultSwitch(faults)
    keys = [parse_key(secret) for secret in signing_secrets]
    sender = Sender(state, switch, keys, trust=trust, time_scale=time_scale, now=utc_now)
    tenant = Tenant(base_url, state, TokenIssuer(time.time), switch, sender.announce)
    load_fixtures(tenant)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with sender:
            yield
        state.close()

    return assemble(tenant, hosts=hosts, lifespan=lifespan)


def load_fixtures(tenant: Tenant) -> None:
    """Create templates and signing requests, if the state is new."""
    if tenant.state.of(templates.PresetRecord).count() == 0:
        with tenant.state.transaction():
            templates.load_fixtures(tenant)
            certificates.load_fixtures(tenant)


def assemble(tenant: Tenant, *, hosts: Collection[str] = (), lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    """Assemble the routes that answer for a tenant. Without a lifespan nothing is delivered."""
    app = Starlette(
        routes=[
            Route(TOKEN_PATH, tenant.tokens.grant, methods=["POST"]),
            *routes(tenant),
            *_documents(),
            *page.routes(tenant),
        ],
        middleware=[Middleware(BrowserGuard, hosts=hosts)],
        exception_handlers=ERROR_HANDLERS,
        lifespan=lifespan,
    )
    # A path with a slash too many is unknown, not moved.
    app.router.redirect_slashes = False
    return app


@cache
def _documents() -> list[Route]:
    """Return the routes of the OpenAPI documents: one for the platform, one for the sandbox's own operations."""

    def route(path: str, title: str, *, platform: bool) -> Route:
        content = document(title, [operation for operation in OPERATIONS if operation.needs_token == platform])
        return Route(path, lambda _: JSONResponse(content))

    return [
        route("/openapi.json", "Credential platform", platform=True),
        route("/sandbox/openapi.json", "The sandbox's own operations", platform=False),
    ]
