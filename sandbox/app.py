"""The sandbox, assembled."""

import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Lifespan

from credhook.sandbox import page
from credhook.sandbox.deliveries import deliveries, endpoints
from credhook.sandbox.deliveries.sender import Sender
from credhook.sandbox.deliveries.signing import parse_key
from credhook.sandbox.http import tokens
from credhook.sandbox.http.errors import HANDLERS
from credhook.sandbox.http.guard import Guard
from credhook.sandbox.resources import (
    certificates,
    issuances,
    presentations,
    presets,
    templates,
    trusted_entities,
    users,
    wallet,
)
from credhook.sandbox.settings import Settings
from credhook.sandbox.tenant import openapi
from credhook.sandbox.tenant.authority import Authority
from credhook.sandbox.tenant.faults import FaultSwitch
from credhook.sandbox.tenant.operations import Operation, routes
from credhook.sandbox.tenant.state import State
from credhook.sandbox.tenant.tenant import Tenant, utc_now
from credhook.sandbox.triggers import fault_routes, triggers
from credhook.sandbox.triggers.fixtures import load_fixtures

NOUNS = (
    *(presets, templates, certificates, trusted_entities, endpoints, users, wallet, issuances, presentations),
    *(triggers, deliveries, fault_routes),
)
OPERATIONS: tuple[Operation, ...] = tuple(operation for noun in NOUNS for operation in noun.OPERATIONS)


def create_app(settings: Settings) -> Starlette:
    """Assemble a sandbox.

    Raises:
        StateError: The state file cannot be used.
        BadKeyError: A signing key is none.
        OSError, ssl.SSLError: The authority's file cannot be read.
    """
    state = State(settings.state)
    faults = FaultSwitch(settings.faults)
    sender = Sender(
        state,
        faults,
        [parse_key(secret) for secret in settings.signing_secrets],
        trust=_trust(settings),
        time_scale=settings.time_scale,
        now=utc_now,
    )
    tenant = Tenant(settings.base_url, state, tokens.Tokens(time.time), faults, sender.announce, Authority.create())
    load_fixtures(tenant)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with sender:
            yield
        state.close()

    return assemble(tenant, hosts=settings.hosts, lifespan=lifespan)


def assemble(tenant: Tenant, *, hosts: Collection[str] = (), lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    """Put what answers for a tenant together. Without a lifespan nothing is delivered."""
    app = Starlette(
        routes=[
            Route(tokens.PATH, tenant.tokens.grant, methods=["POST"]),
            *routes(OPERATIONS, tenant),
            *_documents(),
            *page.routes(tenant),
        ],
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )
    # A path with a slash too many is unknown, not moved.
    app.router.redirect_slashes = False
    return app


@cache
def _documents() -> tuple[Route, ...]:
    """Return the routes of the OpenAPI documents: one for the platform, one for what the sandbox adds."""
    platform = [operation for operation in OPERATIONS if operation.needs_token]
    own = [operation for operation in OPERATIONS if not operation.needs_token]
    documents = {
        "/openapi.json": openapi.document("Credential platform, played by the sandbox", platform),
        "/sandbox/openapi.json": openapi.document("What the sandbox adds", own),
    }
    return tuple(Route(path, _document(content)) for path, content in documents.items())


def _document(content: dict[str, Any]) -> Callable[[Request], Response]:
    return lambda _: JSONResponse(content)


def _trust(settings: Settings) -> ssl.SSLContext:
    """Return what deliveries trust: the system's authorities, and one more if there is one."""
    trust = ssl.create_default_context()
    if settings.authority:
        trust.load_verify_locations(settings.authority)
    return trust
