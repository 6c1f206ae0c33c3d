"""The platform: whether we get a token, whether the API takes it, has our time, and delivers what handlers want."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from credhook.events import EVENT_TYPES
from credhook.ops.doctor_redis import of_clock
from credhook.ops.finding import Finding, apart, fail, ok, skipped, warn
from credhook.ops.setup import Setup
from credhook.worker.api.calls.errors import ApiError
from credhook.worker.api.calls.hints import hint
from credhook.worker.api.client import AsyncApi, transport_from
from credhook.worker.api.http.exchange import HEADERS, Request, Transport, Unanswered, Unsendable
from credhook.worker.api.models import Endpoint
from credhook.worker.api.oauth.credentials import ClientCredentials
from credhook.worker.commands.endpoints import plan, shown
from credhook.worker.handlers.loading import CannotLoad, load
from credhook.worker.settings import PlatformSettings

NAMES: Final = ("handlers.load", "platform.clock", "platform.token", "platform.api", "platform.endpoints")

#: Seconds that one question may take, whatever CREDHOOK_FETCH_TIMEOUT is.
_PATIENCE: Final = 5.0


def check_platform(setup: Setup) -> Iterator[Finding]:
    """All of them, each only after what it needs."""
    wanted, finding = _handlers(setup)
    yield finding
    if setup.platform.settings is None:
        yield from (skipped(name, "no platform is set up here, or not wholly") for name in NAMES[1:])
        return
    yield from asyncio.run(_collected(setup, setup.platform.settings, wanted))


def _handlers(setup: Setup) -> tuple[frozenset[str] | None, Finding]:
    """The types that handlers want, None if they cannot be known here."""
    if setup.handlers.settings is None:
        return None, skipped("handlers.load", "no worker is set up here")
    try:
        registry = load(setup.handlers.settings.handlers)
    except CannotLoad as error:
        what, remedy = apart(error.message)
        return None, fail("handlers.load", what, remedy or "see what it says; no worker starts without")
    names = ", ".join(one.name for one in registry.handlers)
    if not registry.handlers:
        remedy = "decorate functions with @handlers.on(…), or let CREDHOOK_HANDLERS name a module that has some"
        return frozenset(), warn("handlers.load", "no handlers are loaded", remedy)
    return frozenset(registry.types), ok("handlers.load", names)


async def _collected(setup: Setup, settings: PlatformSettings, wanted: frozenset[str] | None) -> Sequence[Finding]:
    async with aclosing(_asked(setup, settings, wanted)) as findings:
        return [finding async for finding in findings]


async def _asked(setup: Setup, settings: PlatformSettings, wanted: frozenset[str] | None) -> AsyncGenerator[Finding]:
    soon = settings.model_copy(update={"fetch_timeout": min(settings.fetch_timeout, _PATIENCE)})
    transport, auth = transport_from(soon), ClientCredentials.from_settings(soon)
    try:
        yield await _clock(setup, transport, settings.api_url)
        try:
            await auth.token(transport)
        except ApiError as error:
            yield of_refusal("platform.token", error)
            yield skipped("platform.api", "there is no token")
            yield skipped("platform.endpoints", "there is no token")
            return
        yield ok("platform.token", f"{settings.client_id} is given one")
        try:
            registered = await AsyncApi.from_settings(soon, auth=auth, transport=transport).endpoints.list()
        except ApiError as error:
            yield of_refusal("platform.api", error)
            yield skipped("platform.endpoints", "the platform does not list them")
            return
        yield ok("platform.api", f"{settings.api_url} takes the token")
        url = setup.endpoint.settings.public_url if setup.endpoint.settings else None
        yield of_endpoints(url, wanted, registered)
    finally:
        await auth.aclose()
        await transport.aclose()


async def _clock(setup: Setup, transport: Transport, api_url: str) -> Finding:
    """The platform's time, as any answer of its has it, to the second."""
    try:
        before = setup.now()
        response = await transport.send(Request("GET", api_url + "/", HEADERS, None, repeatable=True))
        now = (before + setup.now()) / 2
        date = parsedate_to_datetime(response.headers.get("date") or "").replace(tzinfo=UTC)
    except (Unanswered, Unsendable, ValueError, TypeError):
        return skipped("platform.clock", "the platform does not tell its time")
    return of_clock("platform.clock", "the platform", date.timestamp() + 0.5 - now, setup.tolerance)


def of_refusal(name: str, error: ApiError) -> Finding:
    """Why the platform does not do what was asked."""
    what, said = apart(str(error))
    return fail(name, what, hint(error) or said or "see the platform's own log")


def of_endpoints(url: str | None, wanted: frozenset[str] | None, registered: Sequence[Endpoint]) -> Finding:
    """Whether what is registered for our URL delivers what handlers want, and no more. Pure; None is not known."""
    name, remedy = "platform.endpoints", "`credhook endpoints plan` shows what `credhook endpoints apply` mends"
    if url is None or wanted is None:
        return skipped(name, "the public URL, or what handlers want, is not known here")
    ours = [one for one in registered if one.url == url]
    if not ours:
        return fail(name, f"the platform delivers nothing to {shown(url)}", remedy)
    delivered = frozenset(each for one in ours for each in one.filter_types or EVENT_TYPES)
    if missing := _listed(wanted - delivered):
        return fail(name, f"handlers want {missing}, which the platform does not deliver", remedy)
    if surplus := _listed(delivered - wanted):
        return warn(name, f"the platform delivers {surplus}, for which there is no handler", remedy)
    if not plan(url, wanted, registered).empty:
        return warn(name, f"{len(ours)} endpoints are registered for {shown(url)}: each event comes as often", remedy)
    return ok(name, f"the platform delivers what handlers want to {shown(url)}")


def _listed(types: frozenset[str]) -> str:
    return ", ".join(sorted(types))
