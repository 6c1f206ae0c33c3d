"""The options that `list`, `replay` and `erase` have in common."""

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


def _cause(text: str) -> str:
    if not CAUSE_ID.fullmatch(text):
        raise ValueError(f"{text!r} is no cause's id, eight of 0-9 and a-f; `credhook causes` prints them")
    return text


MOMENT: Final = _Read("moment", lambda text: moment(text, datetime.now(UTC)))
TYPE: Final = _Read("type", event_type)
#: Which events, by what is known of each at any time.
_WHICH: Final = (
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice([state.value for state in State]),
        help="Only events in this state; repeat it for several. Of dead, data_gone, unhandled, quarantined, "
        "unreadable, accepted and waiting only those of the queue that CREDHOOK_QUEUE names.",
    ),
    click.option(
        "--type",
        "types",
        multiple=True,
        metavar="TYPE",
        type=TYPE,
        help="Only events of this type, such as verification.data; repeat it for several.",
    ),
    click.option(
        "--resource",
        metavar="ID",
        type=_Read("resource", resource_id),
        help="Only events of this issuance or presentation.",
    ),
    click.option(
        "--id",
        "ids",
        multiple=True,
        metavar="WEBHOOK_ID",
        type=_Read("id", webhook_id),
        help="Only this event; repeat it for several.",
    ),
)
_OPTIONS: Final = (
    *_WHICH,
    click.option(
        "--since", metavar="TIME", type=MOMENT, help="Only events received since then: ISO 8601, or an age: 2h, 7d."
    ),
    click.option("--until", metavar="TIME", type=MOMENT, help="Only events received before; likewise."),
    click.option(
        "--cause",
        metavar="ID",
        type=_Read("cause", _cause),
        help="Only events that stand with this cause of failures; `credhook causes` prints the ids.",
    ),
    click.option("--limit", type=click.IntRange(1), help="At most so many, the newest."),
    click.option(
        "--after", metavar="CURSOR", type=_Read("after", Cursor.read), help="Go on where an earlier page has ended."
    ),
)

#: For commands that select by it; to `replay` it says more.
of_handler: Final = click.option(
    "--handler",
    metavar="NAME",
    help="Only events for which this handler has ended, or is waited for, such as accounts.open_account.",
)


def selecting(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command the options of a selection; it is handed over as `selection`."""
    return _with_selection(command, _OPTIONS)


def watching(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command those options alone that say which events to watch; likewise."""
    return _with_selection(command, _WHICH)


#: What a selection takes from the options; a handler means more than that to `replay`.
_SELECTED: Final = frozenset(field.name for field in fields(Selection)) - {"handler"}


def _with_selection(command: Callable[..., None], options: Sequence[Callable[..., Any]]) -> Callable[..., None]:
    @functools.wraps(command)
    def decorated(**given: Any) -> None:
        said = {name: given.pop(name) for name in _SELECTED & given.keys()}
        said |= {"states": frozenset(map(State, said["states"])), "types": frozenset(said["types"])}
        selection = Selection(**said)
        if selection.since and selection.until and selection.since >= selection.until:
            raise click.UsageError("--since should be earlier than --until")
        command(selection=selection, **given)

    return functools.reduce(lambda inner, option: option(inner), reversed(options), decorated)


def refuse_everything(selection: Selection, *, everything: bool) -> None:
    """Change every event only when told so.

    Raises:
        click.UsageError: the selection is empty, and `--all` was not given.
    """
    if selection.is_empty and not everything:
        raise click.UsageError(
            "say which events, or --all; `credhook events list` takes the same options and shows them"
        )
