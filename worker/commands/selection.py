"""Which events a command is about: one set of options for `list`, `replay` and `erase`, and the records they mean."""

import difflib
import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from typing import Any, Final, NamedTuple

import click
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry
from rich.console import Console
from rich.table import Table
from rich.text import Text

from credhook.events import EVENT_TYPES, is_resource_id
from credhook.ledger import EVENT, Index, State
from credhook.redis.connection import open_redis_sync
from credhook.settings import LedgerSettings
from credhook.worker.commands.batches import bar, batched

#: Records fetched in one round trip.
PAGE: Final = 500

_FAMILY: Final = "openid4vc."
_AGE: Final = re.compile(r"(\d{1,9})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_COUNT: Final = re.compile(r"[0-9]{1,15}")
#: Every state, by its name.
STATES: Final = frozenset(state.value for state in State)
_WEBHOOK_ID: Final = re.compile(r"[!-~]{1,256}")


class Found(NamedTuple):
    """As much of a record as decides whether it is meant, and is worth keeping for a million of them."""

    webhook_id: str
    type: str
    state: str
    #: When the receiver stored it, ms since the epoch.
    received: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What the options say. An event is meant if everything that is given holds for it.

    Attributes:
        states: any of these, or all.
        types: any of these event types, or all.
        resource: of this issuance or presentation.
        since: received then or later.
        until: received earlier than that.
        ids: only these, by webhook-id.
        limit: at most so many, the newest.
    """

    states: frozenset[State] = frozenset()
    types: frozenset[str] = frozenset()
    resource: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ids: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it means every event."""
        return not (self.states or self.types or self.resource or self.since or self.until or self.ids)

    def means(self, found: Found, resource: str) -> bool:
        """Whether the event is one of those, the limit left aside."""
        return (
            (not self.states or found.state in self.states)
            and (not self.types or found.type in self.types)
            and self.resource in {None, resource}
            and (self.since is None or found.received >= self.since.timestamp() * 1_000)
            and (self.until is None or found.received < self.until.timestamp() * 1_000)
        )

    def indexes(self, index: Index) -> tuple[str, ...]:
        """The sorted sets that hold all events in these states; none if some states have no such set."""
        held = {
            State.ACCEPTED: index.open,
            State.WAITING: index.open,
            State.DEAD: index.dead,
            State.DATA_GONE: index.dead,
            State.QUARANTINED: index.quarantined,
            State.UNREADABLE: index.unreadable,
        }
        if not self.states <= held.keys():
            return ()
        return tuple(sorted({held[state] for state in self.states}))


def raw(text: str) -> bytes:
    """As Redis has it: bytes that are no Unicode are surrogates in a webhook-id that was read from there."""
    return text.encode(errors="surrogateescape")


def find(redis: Redis, index: Index, selection: Selection) -> Iterable[Found]:
    """The events that are meant, each once: the newest first if there is a limit, in no order otherwise.

    Raises:
        RedisError: Redis failed.
    """
    meant = _meant(redis, index, selection)
    return meant if selection.limit is None else nlargest(selection.limit, meant, key=lambda found: found.received)


def _meant(redis: Redis, index: Index, selection: Selection) -> Iterator[Found]:
    seen = set[str]()  # Redis may name a key twice while its tables shrink.
    with bar("reading") as advance:
        for page in batched(_named(redis, index, selection), PAGE):
            fresh = [webhook_id for webhook_id in dict.fromkeys(page) if webhook_id not in seen]
            seen.update(fresh)
            pipeline = redis.pipeline(transaction=False)
            for webhook_id in fresh:
                pipeline.hmget(raw(EVENT + webhook_id), "type", "state", "received", "resource")
            replies = pipeline.execute(raise_on_error=False)
            for webhook_id, values in zip(fresh, replies, strict=True):
                if read := read_record(webhook_id, values):
                    found, resource = read
                    if selection.means(found, resource):
                        yield found
            advance(len(page))


def read_record(webhook_id: str, values: Any) -> tuple[Found, str] | None:
    """The event, and its resource, of type, state, received and resource as Redis has them. Pure.

    Args:
        webhook_id: the event's.
        values: the reply to HMGET, or its error.

    Returns:
        None if there is no such event. One whose record cannot be read counts as unreadable, whatever it says.

    Raises:
        RedisError: Redis did not answer.
    """
    if isinstance(values, Exception):
        if not isinstance(values, ResponseError) or not str(values).startswith("WRONGTYPE"):
            raise values
        return Found(webhook_id, "", State.UNREADABLE, 0), ""
    if not any(value is not None for value in values):
        return None  # It has expired, or was erased.
    kind, state, received, resource = ((value or b"").decode(errors="backslashreplace") for value in values)
    time = int(received) if _COUNT.fullmatch(received) else None
    sound = kind and state in STATES and values[3] is not None and (time is not None or not received)
    found = Found(webhook_id, sys.intern(kind), sys.intern(state) if sound else State.UNREADABLE, time or 0)
    return found, resource


def _named(redis: Redis, index: Index, selection: Selection) -> Iterator[str]:
    """The webhook-ids of all events that could be meant."""
    if selection.ids:
        yield from selection.ids
    elif indexes := selection.indexes(index):
        for key in indexes:
            for member, _ in redis.zscan_iter(key, count=PAGE):
                yield member.decode(errors="surrogateescape")
    else:
        for key in redis.scan_iter(match=EVENT + "*", count=PAGE):
            yield key.decode(errors="surrogateescape").removeprefix(EVENT)


def absent(redis: Redis, selection: Selection) -> list[str]:
    """The webhook-ids that were asked for by name, and that the ledger does not have."""
    wanted = tuple(dict.fromkeys(selection.ids))
    pipeline = redis.pipeline(transaction=False)
    for webhook_id in wanted:
        pipeline.exists(EVENT + webhook_id)
    return [webhook_id for webhook_id, there in zip(wanted, pipeline.execute(), strict=True) if not there]


def print_counts(found: Iterable[Found], *, as_json: bool) -> None:
    """Print how many events there are of each state and type."""
    counts = sorted(Counter((one.state, one.type) for one in found).items())
    if as_json:
        for (state, kind), number in counts:
            click.echo(json.dumps({"state": state, "type": kind, "events": number}))
        return
    table = Table("state", "type", "events", show_footer=True)
    table.columns[2].justify, table.columns[2].footer = "right", str(sum(number for _, number in counts))
    for (state, kind), number in counts:
        table.add_row(Text(state), Text(kind), str(number))
    print_table(table)


def print_table(table: Table) -> None:
    """Print it as wide as the terminal, or wide enough for a pipe."""
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def plain(text: str) -> Text:
    """The text as a cell of a table: neither markup, nor what a terminal would obey."""
    return Text("".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text))


@contextmanager
def ledger() -> Iterator[tuple[Redis, Index]]:
    """The ledger that the settings name.

    A failed command is not sent again: a reply that was lost would make what this command has just done look as if
    somebody else had.

    Raises:
        click.ClickException: Redis does not answer.
    """
    settings = LedgerSettings()
    redis = open_redis_sync(settings.redis_url.get_secret_value(), retry=Retry(NoBackoff(), 0))
    try:
        redis.ping()
        yield redis, Index(settings.queue)
    except ResponseError as error:
        # Redis's own words name no value, but which permission, memory or type is missing.
        reason = str(error).partition("\n")[0]
        raise click.ClickException(f"Redis refuses: {reason}") from error
    except RedisError as error:
        raise click.ClickException(f"Redis does not answer ({type(error).__name__}); check REDIS_URL") from error
    finally:
        redis.close()


def event_type(text: str) -> str:
    """The event type of that name, or of that name without the `openid4vc.` before it.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    for name in (text, _FAMILY + text):
        if name in EVENT_TYPES:
            return name
    short = text.removeprefix(_FAMILY)
    near = difflib.get_close_matches(short, [name.removeprefix(_FAMILY) for name in EVENT_TYPES], n=1)
    remedy = f"did you mean {near[0]}?" if near else f"they are {', '.join(EVENT_TYPES)}"
    raise ValueError(f"{text!r} is no event type; {remedy}")


def moment(text: str, now: datetime) -> datetime:
    """The moment that the text names.

    Args:
        text: ISO 8601, in UTC unless it says otherwise; or how long ago it was: `90s`, `15m`, `2h`, `7d`, `4w`.
        now: what ages are counted from.

    Raises:
        ValueError: it is neither.
    """
    try:
        if age := _AGE.fullmatch(text):
            return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
        read = datetime.fromisoformat(text)
        return read if read.tzinfo else read.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} should be ISO 8601, such as 2026-11-21T09:30, or an age, such as 2h or 7d"
        ) from None


class _Read(click.ParamType[Any]):
    """An option that a function reads, which raises ValueError for what is wrong."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _resource(text: str) -> str:
    if not is_resource_id(text):
        raise ValueError(f"{text!r} is no issuance's or presentation's id")
    return text


def _webhook_id(text: str) -> str:
    if not _WEBHOOK_ID.fullmatch(text):
        raise ValueError(f"{text!r} is no webhook-id")
    return text


_MOMENT: Final = _Read("moment", lambda text: moment(text, datetime.now(UTC)))
_OPTIONS: Final = (
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice([state.value for state in State]),
        help="Only events in this state; repeat it for several. Of dead, data_gone, quarantined, unreadable, accepted "
        "and waiting only those of the queue that CREDHOOK_QUEUE names.",
    ),
    click.option(
        "--type",
        "types",
        multiple=True,
        metavar="TYPE",
        type=_Read("type", event_type),
        help="Only events of this type, such as verification.data; repeat it for several.",
    ),
    click.option(
        "--resource",
        metavar="ID",
        type=_Read("resource", _resource),
        help="Only events of this issuance or presentation.",
    ),
    click.option(
        "--since", metavar="TIME", type=_MOMENT, help="Only events received since then: ISO 8601, or an age: 2h, 7d."
    ),
    click.option("--until", metavar="TIME", type=_MOMENT, help="Only events received before; likewise."),
    click.option(
        "--id",
        "ids",
        multiple=True,
        metavar="WEBHOOK_ID",
        type=_Read("id", _webhook_id),
        help="Only this event, without looking through the others; repeat it for several.",
    ),
    click.option("--limit", type=click.IntRange(1), help="At most so many, the newest."),
)


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command the options of a selection; it is handed over as `selection`."""

    @functools.wraps(command)
    def with_selection(
        *,
        states: tuple[str, ...],
        types: tuple[str, ...],
        resource: str | None,
        since: datetime | None,
        until: datetime | None,
        ids: tuple[str, ...],
        limit: int | None,
        **options: Any,
    ) -> None:
        if since and until and since >= until:
            raise click.UsageError("--since should be earlier than --until")
        selection = Selection(frozenset(map(State, states)), frozenset(types), resource, since, until, ids, limit)
        command(selection=selection, **options)

    decorated: Callable[..., None] = with_selection
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def refuse_everything(selection: Selection, *, everything: bool) -> None:
    """Change every event only when told so.

    Raises:
        click.UsageError: the selection is empty, and `--all` was not given.
    """
    if selection.is_empty and not everything:
        raise click.UsageError(
            "say which events, or --all; `credhook events list` takes the same options and shows them"
        )
