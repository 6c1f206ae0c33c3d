"""`credhook endpoints` and `credhook handlers`: the event types that handlers want and the platform delivers.

The platform cannot update an endpoint, so it is replaced. The new endpoint is created before the old one is deleted, so
that no event is lost. While both exist, the platform may deliver an event twice, under two webhook-ids.

An endpoint that we create gets an id with the name of our queue. So we recognise it when its URL has changed, and leave
the endpoints of other deployments alone. Two deployments may have left the name at its default, so endpoints at other
hosts are replaced only with `--moved`.
"""

import asyncio
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, urlsplit

import click

from credhook.events import EVENT_TYPES, canonical_type
from credhook.settings import EndpointSettings, HandlerSettings
from credhook.terminal import plain
from credhook.urls import normal_url
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, InvalidRequest, InvalidResponse, NotFound
from credhook.worker.api.models import Endpoint, EndpointRequest
from credhook.worker.api.operations import Endpoints
from credhook.worker.commands.api import call
from credhook.worker.commands.events import print_table
from credhook.worker.handlers.loading import load

#: No filter: the endpoint receives every event, also of future types.
ALL: Final = frozenset[str]()
_ALL_TYPES: Final = frozenset(EVENT_TYPES)
#: The ids that we choose: `credhook-3-inbox` for the queue `inbox`, `credhook-all-4-inbox` without a filter.
_OUR_ID: Final = re.compile(r"credhook-(?P<all>all-)?(?P<number>[1-9]\d{0,8})-(?P<queue>[A-Za-z0-9_-]{1,64})")
#: A last path segment that may be the path secret.
_SECRET: Final = re.compile(r"/([A-Za-z0-9_-]{4})[A-Za-z0-9_-]{18,}(?=/?$)")
#: Seconds before each look at the platform's list after the steps of a plan.
LOOKS_AFTER_SECONDS: Final = (0.0, 1.0, 2.0)
#: Exit code of `plan` if `apply` would do something.
DIFFERENCE: Final = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps after which exactly one of our endpoints receives the `wanted` types, or `ALL`, at `url`.

    Attributes:
        new_id: the id of the endpoint to create, unless there is an endpoint to keep.
        keep: the endpoint that is right already.
        doubtful: endpoints that may be ours or another deployment's: at another host with our queue's name in the id,
            or at our URL with another path secret and an id that we have not set.
    """

    url: str
    wanted: frozenset[str]
    queue: str
    moved: bool
    new_id: str
    delete: tuple[Endpoint, ...]
    keep: Endpoint | None
    doubtful: tuple[Endpoint, ...]

    @property
    def empty(self) -> bool:
        """Return True if nothing must be done."""
        return self.keep is not None and not self.delete


def plan(url: str, wanted: frozenset[str], registered: Iterable[Endpoint], queue: str, *, moved: bool = False) -> Plan:
    """Compare the registered endpoints with the wanted types. `moved`: doubtful endpoints are ours."""
    ours: list[Endpoint] = []
    doubtful: list[Endpoint] = []
    numbers, wanted_place = [0], _place(url)
    for endpoint in registered:
        our_id = _OUR_ID.fullmatch(endpoint.id)
        is_named = our_id is not None and our_id["queue"] == queue
        if our_id and is_named:
            numbers.append(int(our_id["number"]))
        place = _place(endpoint.url)
        if is_at(endpoint, url) or (is_named and place.netloc == wanted_place.netloc):
            ours.append(endpoint)
        elif is_named or (our_id is None and place == wanted_place):
            (ours if moved else doubtful).append(endpoint)
    right = [endpoint for endpoint in ours if _is_right(endpoint, url, wanted)]
    keep = max(right, key=lambda endpoint: _OUR_ID.fullmatch(endpoint.id) is not None, default=None)
    new_id = f"credhook-{'' if wanted else 'all-'}{max(numbers) + 1}-{queue}"
    delete = tuple(endpoint for endpoint in ours if endpoint is not keep)
    return Plan(url, wanted, queue, moved, new_id, delete, keep, tuple(doubtful))


async def apply(api: AsyncApi, steps: Plan) -> None:
    """Take the steps, creation first. A failure in between leaves an old endpoint, but never deletes the only one.

    Raises:
        ApiError: The platform refused a step, or its list still differs from the plan afterwards.
    """
    for endpoint in steps.delete:
        Endpoints.delete(endpoint.id)  # Nothing is sent yet: an id that cannot be sent fails here.
    if steps.keep is None:
        types = tuple(sorted(steps.wanted)) or None
        try:
            await api.endpoints.create(EndpointRequest(url=steps.url, id=steps.new_id, filter_types=types))
        except InvalidRequest as error:
            # An earlier try may have created the endpoint although its answer was a 500.
            if error.status != HTTPStatus.CONFLICT or not any(
                endpoint.id == steps.new_id and _is_right(endpoint, steps.url, steps.wanted)
                for endpoint in await api.endpoints.list()
            ):
                raise
    for endpoint in steps.delete:
        try:
            await api.endpoints.delete(endpoint.id)
        except NotFound:
            continue
        except ApiError as error:
            error.args = (f"{error}; until {endpoint.id} is deleted, events may arrive twice: apply again",)
            raise
    if not steps.empty:
        await _check(api, steps)


async def _check(api: AsyncApi, steps: Plan) -> None:
    """Raise InvalidResponse with the difference if a new plan is not empty. The platform's list may lag."""
    for seconds in LOOKS_AFTER_SECONDS:
        await asyncio.sleep(seconds)
        again = plan(steps.url, steps.wanted, await api.endpoints.list(), steps.queue, moved=steps.moved)
        if again.empty:
            return
    difference = "; ".join(" ".join(line.split()) for line in lines(again))
    raise InvalidResponse(
        f"endpoints: the platform took every step, and its list still differs from the plan: {difference}",
        operation="endpoints.list",
        cause="differs",
    )


def is_at(endpoint: Endpoint, url: str) -> bool:
    """Return True if the endpoint is registered for this URL, however the platform writes it."""
    return normal_url(endpoint.url) == normal_url(url)


def _is_right(endpoint: Endpoint, url: str, wanted: frozenset[str]) -> bool:
    """Return True if the endpoint receives the wanted types at the URL. Unknown types make no difference."""
    receives = filter_of(endpoint)
    if not is_at(endpoint, url):
        return False
    if wanted == ALL:  # A platform that has replaced our id may have written the ten types where none was named.
        return receives == ALL or (receives >= _ALL_TYPES and _OUR_ID.fullmatch(endpoint.id) is None)
    return receives & _ALL_TYPES == wanted or (receives == ALL and wanted == _ALL_TYPES)


def _split(url: str) -> SplitResult:
    """Return the parts of the URL. A text that is not a URL is all path."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", url, "", "")


def _place(url: str) -> SplitResult:
    """Return the URL without the path secret."""
    parts = normal_url(url)
    return parts._replace(path=_SECRET.sub("", parts.path))


def filter_of(endpoint: Endpoint) -> frozenset[str]:
    """Return the types that an endpoint is registered for, or `ALL` if it has no filter.

    The platform may list all types for an endpoint without a filter. Then our id tells that there is none.
    """
    types, ours = frozenset(map(canonical_type, endpoint.filter_types or ())), _OUR_ID.fullmatch(endpoint.id)
    return ALL if ours and ours["all"] and types >= _ALL_TYPES else types


def described(types: frozenset[str]) -> str:
    """Return the names of the types; "all events" if there is no filter."""
    if types == ALL:
        return "all events"
    names = (f"all {len(_ALL_TYPES)} event types",) if types >= _ALL_TYPES else sorted(types & _ALL_TYPES)
    return ", ".join([*names, *sorted(types - _ALL_TYPES)])


@click.group()
def handlers() -> None:
    """Show which handlers are loaded, and for which types."""


@handlers.command("list")
def list_handlers() -> None:
    """Print each loaded handler with its event types and the limits in force."""
    settings = HandlerSettings()
    rows = [
        (handler.name, "coroutine" if handler.is_async else "thread", described(handler.types), handler.limits)
        for handler in load(settings.handlers, settings.handler_options).handlers
    ]
    print_table(("handler", "runs as", "event types", "options"), rows, "no handlers are loaded")


@click.group()
def endpoints() -> None:
    """List, plan, apply and delete the platform's webhook endpoints."""


@endpoints.command("list")
def list_endpoints() -> None:
    """Print every endpoint of the organisation."""
    rows = [
        (endpoint.id, shown(endpoint.url), described(filter_of(endpoint)), str(endpoint.created_at or ""))
        for endpoint in call(lambda api: api.endpoints.list())
    ]
    print_table(("id", "url", "event types", "created"), rows, "no endpoints are registered")


_WANTED: Final = [
    click.Option(
        ["--type", "types"],
        type=click.Choice(EVENT_TYPES),
        multiple=True,
        metavar="TYPE",
        help="Event type; repeat it for several. Default: the types that handlers want.",
    ),
    click.Option(["--all", "everything"], is_flag=True, help="No filter: every event, also of future types."),
    click.Option(
        ["--moved"],
        is_flag=True,
        help="Also replace the endpoints that `plan` notes, because this deployment was at another host.",
    ),
]


@endpoints.command("plan", params=_WANTED)
def plan_endpoints(*, types: tuple[str, ...], everything: bool, moved: bool) -> None:
    """Print what `apply` would do.

    Exit codes: 0 nothing; 1 the platform refused or did not answer; 2 wrong usage or a wrong setting; 3 a difference.
    """
    steps = _planned(types, everything=everything, moved=moved)
    sys.exit(0 if steps.empty else DIFFERENCE)


@endpoints.command("apply", params=_WANTED)
def apply_endpoints(*, types: tuple[str, ...], everything: bool, moved: bool) -> None:
    """Register CREDHOOK_PUBLIC_URL for the event types that the handlers want, unless it is registered.

    The command replaces this deployment's earlier endpoint. It creates the new endpoint before it deletes the old one.
    Deployments on one platform are told apart by CREDHOOK_QUEUE and the URL's host.
    """
    steps = _planned(types, everything=everything, moved=moved)
    if not steps.empty:
        call(lambda api: apply(api, steps))
        click.echo("done")


@endpoints.command("delete")
@click.argument("endpoint_id")
def delete_endpoint(endpoint_id: str) -> None:
    """Delete the endpoint with this id, as `list` prints it. The platform then delivers nothing to it."""

    async def delete(api: AsyncApi) -> str:
        try:
            await api.endpoints.delete(endpoint_id)
        except NotFound:
            return f"nothing to do: there is no endpoint {plain(endpoint_id)}"
        return f"deleted {plain(endpoint_id)}"

    click.echo(call(delete))


def _planned(types: tuple[str, ...], *, everything: bool, moved: bool) -> Plan:
    settings = EndpointSettings()
    if everything and types:
        raise click.UsageError("--all and --type exclude each other")
    wanted = ALL if everything else frozenset(types) or frozenset(load(HandlerSettings().handlers).types)
    if not (wanted or everything):
        raise click.UsageError("the loaded handlers want no event type; name types with --type, or use --all")
    registered = call(lambda api: api.endpoints.list())
    steps = plan(settings.public_url, wanted, registered, settings.queue, moved=moved)
    click.echo("\n".join(lines(steps)))
    return steps


def lines(steps: Plan) -> Iterator[str]:
    """Yield one line for each step, in order."""
    yield f"{shown(steps.url)}: {described(steps.wanted)}"
    if normal_url(steps.url).path == "/":
        yield "  note    the URL has no path. Receivers take deliveries at CREDHOOK_WEBHOOK_PATH: /webhooks by default"
    if steps.keep and _ends_with_slash(steps.keep.url) != _ends_with_slash(steps.url):
        yield f"  note    the platform writes it as {plain(shown(steps.keep.url))}: deliveries may come to that path"
    yield f"  keep    {plain(steps.keep.id)}" if steps.keep else f"  create  a new endpoint, {steps.new_id}"
    for endpoint in steps.delete:
        types = plain(described(filter_of(endpoint)))
        yield f"  delete  {plain(endpoint.id)} at {plain(shown(endpoint.url))} ({types})"
    for endpoint in steps.doubtful:
        yield f"  note    {plain(endpoint.id)} at {plain(shown(endpoint.url))} stays. If it is this deployment's,"
        yield "          replace it with --moved. If not, give each deployment a CREDHOOK_QUEUE of its own"
    if steps.keep is None and steps.delete:
        yield "  note    while both exist, the platform may deliver one event twice, under two webhook-ids"
    if steps.empty:
        yield "nothing to do: the endpoint is up to date"


def _ends_with_slash(url: str) -> bool:
    return (_split(url).path or "/").endswith("/")


def shown(url: str) -> str:
    """Hide most of a long last path segment, which may be the path secret."""
    parts = _split(url)
    return parts._replace(path=_SECRET.sub(r"/\1…", parts.path)).geturl()
