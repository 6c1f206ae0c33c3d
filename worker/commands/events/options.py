"""The options with which `list`, `tail`, `replay` and `erase` select events."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

import click

from credhook.store import State
from credhook.worker.commands.search.selection import (
    CAUSE_ID,
    Cursor,
    Selection,
    event_type,
    moment,
    resource_id,
    webhook_id,
)


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


def refuse_everything(selection: Selection, *, everything: bool) -> None:
    """Refuse to change every event without `--all`.

    Raises:
        click.UsageError: the selection is empty, and `--all` was not given.
    """
    if selection.is_empty and not everything:
        raise click.UsageError("say which events, or --all; `credhook events list` with the same options shows them")
