"""`credhook endpoints` and `credhook handlers`: the event types that handlers want and the platform delivers.

The platform cannot update an endpoint, so it is replaced. The new one is created before the old one is deleted, so that
no event is lost. While both exist, the platform may deliver one event twice, under two webhook-ids.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import click

from credhook.events import EVENT_TYPES
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.models import Endpoint, EndpointRequest
from credhook.worker.commands.api import call
from credhook.worker.commands.events import print_table
from credhook.worker.handlers.loading import load
from credhook.worker.settings import EndpointSettings, HandlerSettings

#: No filter: the endpoint receives every event, also of future types.
ALL: Final = frozenset[str]()
#: Exit code of `plan` if `apply` would do something.
DIFFERENCE: Final = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps after which exactly one endpoint at `url` receives the `wanted` types, or `ALL`."""

    url: str
    wanted: frozenset[str]
    delete: tuple[Endpoint, ...]
    #: The endpoint that is right already.
    keep: Endpoint | None

    @property
    def create(self) -> bool:
        """Return True if an endpoint must be created."""
        return self.keep is None

    @property
    def empty(self) -> bool:
        """Return True if nothing must be done."""
        return not self.create and not self.delete


def plan(url: str, wanted: frozenset[str], registered: Iterable[Endpoint]) -> Plan:
    """Compare the registered endpoints at `url` with the wanted types. Pure."""
    ours = [endpoint for endpoint in registered if endpoint.url == url]
    right = [endpoint for endpoint in ours if types_of(endpoint) == (wanted or frozenset(EVENT_TYPES))]
    keep = right[0] if right else None
    return Plan(url, wanted, tuple(endpoint for endpoint in ours if endpoint is not keep), keep)


async def apply(api: AsyncApi, steps: Plan) -> None:
    """Take the steps, creation first. A failure in between leaves one endpoint too many, never one too few."""
    if steps.create:
        types = tuple(sorted(steps.wanted)) or None
        await api.endpoints.create(EndpointRequest(url=steps.url, filter_types=types))
    for endpoint in steps.delete:
        await api.endpoints.delete(endpoint.id)


def types_of(endpoint: Endpoint) -> frozenset[str]:
    """Return the types that an endpoint receives. Without filter types it receives all."""
    return frozenset(endpoint.filter_types or EVENT_TYPES)


def described(types: frozenset[str]) -> str:
    """Return the names of the types, or "all events". Pure."""
    return ", ".join(sorted(types)) if types and types < frozenset(EVENT_TYPES) else "all events"


@click.group()
def handlers() -> None:
    """Show which handlers are loaded, and for which types."""


@handlers.command("list")
def list_handlers() -> None:
    """Print each loaded handler with its event types."""
    registry = load(HandlerSettings().handlers)
    if not registry.handlers:
        click.echo("no handlers are loaded")
        return
    rows = [
        (handler.name, "coroutine" if handler.is_async else "thread", described(handler.types))
        for handler in registry.handlers
    ]
    print_table(("handler", "runs as", "event types"), rows)


@click.group()
def endpoints() -> None:
    """List, plan, apply and delete the platform's webhook endpoints."""


@endpoints.command("list")
def list_endpoints() -> None:
    """Print every endpoint of the organisation."""
    registered = call(lambda api: api.endpoints.list())
    if not registered:
        click.echo("no endpoints are registered")
        return
    rows = [
        (endpoint.id, shown(endpoint.url), described(types_of(endpoint)), str(endpoint.created_at or ""))
        for endpoint in registered
    ]
    print_table(("id", "url", "event types", "created"), rows)


_named_types = click.option(
    "--type",
    "types",
    type=click.Choice(EVENT_TYPES),
    multiple=True,
    metavar="TYPE",
    help="An event type, repeated. Default: the handlers'.",
)
_all_types = click.option("--all", "everything", is_flag=True, help="No filter: every event, also of future types.")


@endpoints.command("plan")
@_named_types
@_all_types
def plan_endpoints(*, types: tuple[str, ...], everything: bool) -> None:
    """Print what `apply` would do.

    Exit codes: 0 nothing; 1 the platform refused or did not answer; 2 wrong usage or a wrong setting; 3 a difference.
    """
    steps = _planned(types, everything=everything)
    sys.exit(0 if steps.empty else DIFFERENCE)


@endpoints.command("apply")
@_named_types
@_all_types
def apply_endpoints(*, types: tuple[str, ...], everything: bool) -> None:
    """Register CREDHOOK_PUBLIC_URL for the event types that the handlers want, unless it is registered."""
    steps = _planned(types, everything=everything)
    if not steps.empty:
        call(lambda api: apply(api, steps))
        click.echo("done")


@endpoints.command("delete")
@click.argument("endpoint_id")
def delete_endpoint(endpoint_id: str) -> None:
    """Delete the endpoint with this id, as `list` prints it. The platform then delivers nothing to it."""
    call(lambda api: api.endpoints.delete(endpoint_id))
    click.echo(f"deleted {endpoint_id}")


def _planned(types: tuple[str, ...], *, everything: bool) -> Plan:
    """Print the steps and return them."""
    settings = EndpointSettings()
    wanted = _wanted(types, everything=everything)
    steps = plan(settings.public_url, wanted, call(lambda api: api.endpoints.list()))
    click.echo("\n".join(lines(steps)))
    return steps


def _wanted(types: tuple[str, ...], *, everything: bool) -> frozenset[str]:
    if everything and types:
        raise click.UsageError("--all and --type exclude each other")
    if everything:
        return ALL
    wanted = frozenset(types) or frozenset(load(HandlerSettings().handlers).types)
    if not wanted:
        raise click.UsageError("the loaded handlers want no event type; name some with --type, or use --all")
    return wanted


def lines(steps: Plan) -> Iterator[str]:
    """Yield one line for each step, in order. Pure."""
    yield f"{shown(steps.url)}: {described(steps.wanted)}"
    yield f"  keep    {steps.keep.id}" if steps.keep else "  create  a new endpoint with these types"
    for endpoint in steps.delete:
        yield f"  delete  {endpoint.id} ({described(types_of(endpoint))})"
    if steps.create and steps.delete:
        yield "  note    while both exist, the platform may deliver one event twice, under two webhook-ids"
    if steps.empty:
        yield "nothing to do: the platform has it so already"


def shown(url: str) -> str:
    """Hide most of a long last path segment: it may be the path secret. Pure."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=re.sub(r"/([A-Za-z0-9_-]{4})[A-Za-z0-9_-]{18,}$", r"/\1…", parts.path)))
