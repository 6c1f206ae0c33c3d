"""Registration: which `filterTypes` the platform should deliver to us, compared with what it has, and made so.

The platform's API has no update (specification, section Webhook endpoints): an endpoint is replaced. The new one is
created before the old one is deleted, so that no event falls between; while both exist, the platform may deliver one
event twice, under two webhook-ids.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from credhook.events import EVENT_TYPES
from credhook.worker.api.calls.errors import ApiError
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.models import Endpoint, EndpointRequest
from credhook.worker.handlers.loading import load
from credhook.worker.settings import EndpointSettings, HandlerSettings, PlatformSettings

#: Stands for "no filter": the endpoint receives every event, those of tomorrow included.
ALL: Final = frozenset[str]()
#: Exit code of `plan` where `apply` would do something: none that says that something is wrong.
DIFFERENCE: Final = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The difference between what is registered and what is `wanted`, event types or `ALL`, for our URL.

    `create`: whether an endpoint with exactly these types must be created; `delete`: those that are in the way; `keep`:
    the one that is right already.
    """

    url: str
    wanted: frozenset[str]
    create: bool
    delete: tuple[Endpoint, ...]
    keep: Endpoint | None

    @property
    def empty(self) -> bool:
        """Whether everything is as it should be."""
        return not self.create and not self.delete

    @property
    def overlaps(self) -> bool:
        """Whether two endpoints will exist for a moment."""
        return self.create and bool(self.delete)


def plan(url: str, wanted: frozenset[str], registered: Iterable[Endpoint]) -> Plan:
    """What must be done so that exactly one endpoint at `url` receives the wanted types. Pure."""
    ours = [endpoint for endpoint in registered if endpoint.url == url]
    right = [endpoint for endpoint in ours if types_of(endpoint) == (wanted or frozenset(EVENT_TYPES))]
    keep = right[0] if right else None
    return Plan(url, wanted, keep is None, tuple(one for one in ours if one is not keep), keep)


async def apply(api: AsyncApi, steps: Plan) -> None:
    """Make it so. Creation comes first; a failure in between leaves one endpoint too many, never one too few.

    Raises:
        ApiError: the platform refused a step, or could not be reached.
    """
    if steps.create:
        await api.endpoints.create(
            EndpointRequest(url=steps.url, filter_types=_in_order(steps.wanted) if steps.wanted else None)
        )
    for endpoint in steps.delete:
        await api.endpoints.delete(endpoint.id)


def types_of(endpoint: Endpoint) -> frozenset[str]:
    """What an endpoint receives: all, where it has no filter types, which a platform may also show as all ten."""
    return frozenset(endpoint.filter_types or EVENT_TYPES)


def described(types: frozenset[str], separator: str = ", ") -> str:
    """The types by name, or that they are all. Pure."""
    return separator.join(_in_order(types)) if types and types < frozenset(EVENT_TYPES) else "all events"


def _in_order(types: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(types, key=lambda name: EVENT_TYPES.index(name) if name in EVENT_TYPES else len(EVENT_TYPES)))


@click.group()
def endpoints() -> None:
    """List, plan, apply and delete the platform's webhook endpoints."""


@endpoints.command("list")
def list_endpoints() -> None:
    """Print every endpoint of the organisation."""
    registered = _registered()
    table = Table("id", "url", "event types", "created")
    for one in registered:
        types = described(types_of(one), "\n")
        table.add_row(*map(Text, (one.id, shown(one.url), types, str(one.created_at or ""))))
    Console(width=None if sys.stdout.isatty() else 160).print(table if registered else "no endpoints are registered")


_named_types = click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="An event type, repeated. Default: the handlers'."
)
_all_types = click.option("--all", "everything", is_flag=True, help="No filter: every event, also of types to come.")


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
    """Register CREDHOOK_PUBLIC_URL for the event types that the handlers want; do nothing if it is."""
    steps = _planned(types, everything=everything)
    if not steps.empty:
        _call(lambda api: apply(api, steps))
        click.echo("done")


@endpoints.command("delete")
@click.argument("endpoint_id")
def delete_endpoint(endpoint_id: str) -> None:
    """Delete one endpoint by its id, as `list` prints it. The platform then delivers nothing there any more."""
    _call(lambda api: api.endpoints.delete(endpoint_id))
    click.echo(f"deleted {endpoint_id}")


def _planned(types: tuple[str, ...], *, everything: bool) -> Plan:
    """What is to be done, once it was printed."""
    settings = EndpointSettings()
    wanted = _wanted(types, everything=everything)
    steps = plan(settings.public_url, wanted, _registered())
    click.echo("\n".join(lines(steps)))
    return steps


def _wanted(types: tuple[str, ...], *, everything: bool) -> frozenset[str]:
    if everything and types:
        raise click.UsageError("--all and --type exclude each other")
    if everything:
        return ALL
    for name in types:
        if name not in EVENT_TYPES:
            raise click.UsageError(f"{name} is no event type; they are {', '.join(EVENT_TYPES)}")
    wanted = frozenset(types) or frozenset(load(HandlerSettings().handlers).types)
    if not wanted:
        raise click.UsageError("the loaded handlers want no event type; name some with --type, or use --all")
    return wanted


def lines(steps: Plan) -> Iterator[str]:
    """What is to be done, a line each, in the order in which it is done. Pure."""
    yield f"{shown(steps.url)}: {described(steps.wanted)}"
    if steps.keep is not None:
        yield f"  keep    {steps.keep.id}"
    if steps.create:
        yield "  create  a new endpoint with these types"
    for endpoint in steps.delete:
        yield f"  delete  {endpoint.id} ({described(types_of(endpoint))})"
    if steps.overlaps:
        yield "  note    while both exist, the platform may deliver one event twice, under two webhook-ids"
    if steps.empty:
        yield "nothing to do: the platform has it so already"


def shown(url: str) -> str:
    """The URL as it may be printed: a long last segment may be our path secret, so only its beginning is shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=re.sub(r"/([A-Za-z0-9_-]{4})[A-Za-z0-9_-]{18,}$", r"/\1…", parts.path)))


def _registered() -> Sequence[Endpoint]:
    return _call(lambda api: api.endpoints.list())


T = TypeVar("T")


def _call(operation: Callable[[AsyncApi], Awaitable[T]]) -> T:
    """Run one operation against the platform; what it refuses is one line and exit code 1."""

    async def run() -> T:
        async with AsyncApi.from_settings(PlatformSettings()) as api:
            return await operation(api)

    try:
        return asyncio.run(run())
    except ApiError as error:
        raise click.ClickException(str(error)) from error
