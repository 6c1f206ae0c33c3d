"""`credhook events` and `credhook causes`: show what the store remembers, for people and (`--json`) for programs.

The other commands of `credhook events` take their options from here and print their tables with `print_table`.
"""

import functools
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from dataclasses import replace as but
from datetime import UTC, datetime
from importlib import import_module
from itertools import zip_longest
from typing import Any, Final

import click
from redis import Redis

from credhook.settings import StoreSettings
from credhook.store import MOST_CAUSES, Keys, State
from credhook.worker.commands.batches import ask
from credhook.worker.commands.history import causes as read_causes
from credhook.worker.commands.history import history_of, lines, raw, records, time_of
from credhook.worker.commands.search import (
    CAUSE_ID,
    Counts,
    Cursor,
    EventSummary,
    Page,
    Selection,
    absent,
    count,
    event_type,
    find,
    moment,
    open_store,
    read_page,
    resource_id,
    webhook_id,
)

#: Events that `list` prints without --limit.
_LIMIT: Final = 100
#: Events that `list` reads for a table before it says how far it has come: a few tenths of a second.
_READ_LIMIT: Final = 20_000
#: Commands in modules of their own name. They import handlers or the API client, which takes longer than a list.
_ELSEWHERE: Final = frozenset({"backfill", "erase", "replay", "tail"})
_COLUMNS: Final = ("webhook-id", "type", "resource", "state", "received (UTC)", "attempts", "error")
_CAUSE_COLUMNS: Final = (
    *("cause", "handler", "error", "at", "open", "given up", "failures"),
    *("first (UTC)", "last (UTC)", "version"),
)
_GAP: Final = "  "
#: Characters that a column keeps, however narrow the terminal is.
_MIN_WIDTH: Final = 8


class _Parsed(click.ParamType[Any]):
    """An option whose text is parsed by a function that raises ValueError for invalid text."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _cause(text: str) -> str:
    if not CAUSE_ID.fullmatch(text):
        raise ValueError(f"{text!r} is not the id of a cause, eight of 0-9 and a-f; `credhook causes` prints them")
    return text


def _option(name: str, variable: str, parse: Callable[[str], Any], text: str, **more: Any) -> Callable[..., Any]:
    metavar = more.pop("metavar", "ID")
    return click.option(name, variable, metavar=metavar, type=_Parsed(variable, parse), help=text, **more)


MOMENT: Final = _Parsed("moment", lambda text: moment(text, datetime.now(UTC)))
TYPE: Final = _Parsed("type", event_type)

#: Options about facts that never change, which `tail` takes as well.
_FIXED: Final = (
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice([state.value for state in State]),
        help="Only events in this state; repeat it for several.",
    ),
    click.option(
        "--type",
        "types",
        multiple=True,
        metavar="TYPE",
        type=TYPE,
        help="Only events of this type, such as verification.data; repeat it for several.",
    ),
    _option("--resource", "resource", resource_id, "Only events of this issuance or presentation."),
    _option("--id", "ids", webhook_id, "Only this event; repeat it for several.", metavar="WEBHOOK_ID", multiple=True),
)
_OPTIONS: Final = (
    *_FIXED,
    click.option(
        "--since", metavar="TIME", type=MOMENT, help="Only events received since then: ISO 8601, or an age: 2h, 7d."
    ),
    click.option("--until", metavar="TIME", type=MOMENT, help="Only events received before then."),
    _option("--cause", "cause", _cause, "Only events with this cause of failure; see `credhook causes`."),
    click.option("--limit", type=click.IntRange(1), help="At most this many, the newest."),
    _option("--after", "after", Cursor.read, "Continue where an earlier page ended.", metavar="CURSOR"),
)

#: For commands that select by handler. `replay` has an option of the same name that does more.
by_handler: Final = click.option(
    "--handler",
    metavar="NAME",
    help="Only events that this handler has ended for, or is awaited for, such as accounts.open_account.",
)
#: The parts of a selection that options set.
_SELECTED: Final = frozenset(field.name for field in fields(Selection)) - {"handler"}


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command all options of a selection, which it receives as `selection`."""
    return _with_selection(command, _OPTIONS)


def watching(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command the options of a selection of future events, which it receives as `selection`."""
    return _with_selection(command, _FIXED)


def _with_selection(command: Callable[..., None], options: Sequence[Callable[..., Any]]) -> Callable[..., None]:
    @functools.wraps(command)
    def decorated(**given: Any) -> None:
        selected = {name: given.pop(name) for name in _SELECTED & given.keys()}
        selected |= {"states": frozenset(map(State, selected["states"])), "types": frozenset(selected["types"])}
        selection = Selection(**selected)
        if selection.since and selection.until and selection.since >= selection.until:
            raise click.UsageError("--since should be earlier than --until")
        command(selection=selection, **given)

    return functools.reduce(lambda inner, option: option(inner), reversed(options), decorated)


def confirmed(
    redis: Redis, index: Keys, selection: Selection, question: Callable[[Sequence[EventSummary]], str]
) -> list[EventSummary]:
    """Return the selected events, oldest first, then the ids of --id that the store does not know.

    If `question` returns a consequence, ask the operator first.

    Raises:
        SystemExit: the answer was no.
    """
    events = find(redis, index, selection)[::-1]
    if consequence := question(events):
        ask(consequence)
    return [*events, *(EventSummary(webhook_id, "", "", 0) for webhook_id in absent(redis, index, selection))]


def refuse_everything(selection: Selection, *, everything: bool) -> None:
    """Refuse to change every event without `--all`.

    Raises:
        click.UsageError: the selection is empty, and `--all` was not given.
    """
    if selection.is_empty and not everything:
        raise click.UsageError("say which events, or --all; `credhook events list` with the same options shows them")


def print_counts(counts: Counts, *, as_json: bool) -> None:
    """Print how many events there are of each state and type."""
    rows = sorted(counts.items())
    if as_json:
        for (state, kind), number in rows:
            click.echo(json.dumps({"state": state, "type": kind, "events": number}))
        return
    total = str(sum(number for _, number in rows))
    cells = [(state, kind, str(number).rjust(len(total))) for (state, kind), number in rows]
    print_table(("state", "type", "events"), [*cells, ("", "", total)])


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. Control characters in a cell are escaped."""
    cells = [tuple(map(plain, row)) for row in rows]
    natural = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    widths = fitted(natural, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
    first, *others = folded_lines([header, *cells], widths)
    click.secho(first, bold=True)
    if others:
        click.echo("\n".join(others))


def fitted(natural: Sequence[int], room: int | None) -> list[int]:
    """Return column widths that fit into `room`; the widest columns shrink first. Pure."""
    widths = list(natural)
    while room is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > room and max(widths) > _MIN_WIDTH:
        widths[widths.index(max(widths))] -= 1
    return widths


def folded_lines(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table: several for a row whose cells are wider than their column. Pure."""
    for row in rows:
        folded = [
            [cell[start : start + width] for start in range(0, len(cell) or 1, width)]
            for cell, width in zip(row, widths, strict=True)
        ]
        for parts in zip_longest(*folded, fillvalue=""):
            yield _GAP.join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()


def plain(text: str) -> str:
    """Escape characters that a terminal would obey. Pure."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class _EventCommands(click.Group):
    """The commands of this module and of `_ELSEWHERE`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(import_module(f"credhook.worker.commands.events.{cmd_name}"), cmd_name)
        return command


@click.group(cls=_EventCommands)
def events() -> None:
    """List, show, watch, replay and erase events, and accept missing ones."""


@events.command("list")
@selecting
@by_handler
@click.option("--count", "counting", is_flag=True, help="Print how many there are of each state and type instead.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line. Pass its `cursor` to --after for the rest."
)
def list_events(*, selection: Selection, handler: str | None, counting: bool, as_json: bool) -> None:
    """Print events, newest first; 100 of them unless --limit says otherwise."""
    selection = but(selection, handler=handler)
    with open_store() as (redis, index):
        if counting:
            numbers = count(redis, index, selection, retention=StoreSettings().retention)
            print_counts(numbers, as_json=as_json)
            return
        limited = but(selection, limit=selection.limit or _LIMIT)
        page = read_page(redis, index, limited, patience=None if as_json else _READ_LIMIT)
        cursors = {event.webhook_id: str(event.cursor) for event in page.events}
        found = records(redis, index, cursors)
        if as_json:
            for record in found:
                click.echo(json.dumps({**record, "cursor": cursors[record["webhook_id"]]}))
            return
        _print_page(page, found, selection)


def _print_page(page: Page, found: Iterable[dict[str, Any]], selection: Selection) -> None:
    """Print the page as a table, and the command for the next page."""
    if page.events:
        print_table(_COLUMNS, [_cells(record) for record in found])
    elif page.after is None:
        click.echo("no events")
    if page.looked_back_to is not None:
        click.echo(f"looked back to {(time_of(page.looked_back_to) or '')[:19]} UTC, and found {len(page.events)}")
    if page.after is not None:
        options = [*selection.options(), "--after", str(page.after)]
        click.echo(f"for earlier events: credhook events list {shlex.join(options)}")


def _cells(record: dict[str, Any]) -> list[str]:
    attempts = "" if record["attempts"] is None else str(record["attempts"])
    cells = [record[name] or "" for name in ("webhook_id", "type", "resource_id", "state")]
    return [*cells, (record["received_at"] or "")[:19], attempts, record["error"] or ""]


@events.command("show")
@click.argument("webhook_id")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_event(webhook_id: str, *, as_json: bool) -> None:
    """Print everything known about one event: deliveries, attempts, handlers, replays, deaths of its workers.

    An event that was done at the first attempt has no history. Times are in UTC.
    """
    with open_store() as (redis, index):
        record = next(records(redis, index, [webhook_id]), None)
        if record is None:
            raise click.ClickException(f"the store has no event {webhook_id}")
        record |= history_of(redis, index, raw(webhook_id))
    if as_json:
        click.echo(json.dumps(record))
        return
    for line in lines(record):
        click.echo(plain(line))


@click.command()
@click.option("--limit", type=click.IntRange(1, MOST_CAUSES), default=100, help="At most this many; 100 by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def causes(*, limit: int, as_json: bool) -> None:
    """Print why attempts fail, the most recent cause first.

    Failures have the same cause if the same handler failed with an error of the same class, and status, in the same
    function. The handler may also be the fetch, or a worker process that died. `open` and `given up` count the events
    that have the cause now; `failures` counts the attempts that it made fail. `credhook events list`, `replay` and
    `erase` take a cause as --cause.
    """
    with open_store() as (redis, index):
        found = read_causes(redis, index, retention=StoreSettings().retention, limit=limit)
        left = int(redis.zcard(index.causes)) - len(found) if len(found) == limit else 0
    if as_json:
        for cause in found:
            click.echo(json.dumps(cause.as_json()))
        return
    if not found:
        click.echo("no causes: nothing has failed")
        return
    rows = []
    for cause in found:
        numbers = [str(number) for number in (cause.open, cause.given_up, cause.failures)]
        times = [moment.isoformat(" ", "seconds")[:19] if moment else "" for moment in (cause.first, cause.last)]
        versions = cause.version if cause.since == cause.version else f"{cause.version}, since {cause.since}"
        rows.append([cause.id, cause.handler, cause.error, cause.at, *numbers, *times, versions])
    print_table(_CAUSE_COLUMNS, rows)
    if left > 0:
        click.echo(f"{left} more; raise --limit to see them")
    if current := next((cause.id for cause in found if cause.open or cause.given_up), None):
        click.echo(
            f"credhook events list --cause {current} lists its events; once it is fixed, "
            f"credhook events replay --cause {current} runs them again"
        )
