"""The options by which commands select events, and the store that commands open."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

import click

from credhook.settings import StoreSettings
from credhook.store import State
from credhook.store.connection import BRIEFLY
from credhook.store.errors import StoreError, wrong_schema
from credhook.store.health import unanswered
from credhook.store.selection import CAUSE_ID, Cursor, Selection, UnknownCause, an_id, event_type, moment, valid
from credhook.store.store import SyncStore


class _Parsed(click.ParamType[Any]):
    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


MOMENT: Final = _Parsed("time", lambda text: moment(text, datetime.now(UTC)))
TYPE: Final = _Parsed("type", event_type)
AN_ID: Final = _Parsed("id", an_id)
_CAUSE: Final = _Parsed("id", functools.partial(valid, CAUSE_ID.fullmatch, "id of a cause; see `credhook causes`"))

_STATES: Final = [state.value for state in State]
_STATE_HELP: Final = "Only events in this state; repeat it for several."
_TYPE_HELP: Final = "Only events of this type, such as verification.data; repeat it for several."
_SINCE_HELP: Final = "Only events received since then: ISO 8601, in UTC unless it has an offset; or an age: 2h, 7d."
#: Options that `tail` takes as well, since each change of an event shows what they compare.
WATCHING: Final = (
    click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help=_STATE_HELP),
    click.option("--type", "types", multiple=True, type=TYPE, help=_TYPE_HELP),
    click.option("--resource", type=AN_ID, help="Only events of this issuance or presentation."),
    click.argument("ids", metavar="[WEBHOOK_ID]...", nargs=-1, type=AN_ID),
)
OPTIONS: Final = (
    *WATCHING,
    click.option("--since", type=MOMENT, help=_SINCE_HELP),
    click.option("--until", type=MOMENT, help="Only events received before then."),
    click.option("--cause", type=_CAUSE, help="Only events with this cause of failure; see `credhook causes`."),
    click.option("--limit", type=click.IntRange(1), help="At most this many, the newest."),
    click.option("--after", type=_Parsed("cursor", Cursor.read), help="Continue where an earlier page ended."),
)
ALL: Final = click.option("--all", "everything", is_flag=True, help="Every event, unless other options select events.")
#: `replay` has an option of the same name that does more.
BY_HANDLER: Final = click.option(
    "--handler",
    metavar="NAME",
    help="Only events that this handler, such as accounts.open_account, has ended, or that wait for it.",
)


def selecting(*options: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command these options. The command receives a `selection` instead of them.

    If the command has the option `--all`, an empty selection is refused unless `--all` is set.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def decorated(**values: Any) -> None:
            selected = {field.name: values.pop(field.name) for field in fields(Selection) if field.name in values}
            selected |= {"states": frozenset(map(State, selected["states"])), "types": frozenset(selected["types"])}
            selection, everything = Selection(**selected), values.pop("everything", True)
            if selection.since and selection.since > datetime.now(UTC):
                raise click.UsageError("--since is in the future; times are in UTC unless they have an offset: +01:00")
            if selection.since and selection.until and selection.since >= selection.until:
                raise click.UsageError("--since should be earlier than --until")
            if selection.is_empty and not everything:
                raise click.UsageError(
                    "select events, or add --all; `credhook events list` with the same options shows them"
                )
            command(selection=selection, **values)

        return functools.reduce(lambda inner, option: option(inner), reversed(options), decorated)

    return decorate


def no_event(store: SyncStore, webhook_id: str) -> click.ClickException:
    """Return the error for an unknown id. It names the queue, since the event may be in another queue's store."""
    return click.ClickException(f"the store of the queue {store.queue} has no event {webhook_id}")


@contextmanager
def open_store() -> Iterator[SyncStore]:
    """Open the store that the settings name.

    A failed command is not sent again. If only its reply was lost, a second try would find the work done already.

    Raises:
        click.ClickException: Redis does not answer, or the store does not have the selected cause.
    """
    store = StoreSettings().open_store_sync(**BRIEFLY)
    try:
        if advice := wrong_schema(store.queue, store.redis.get(store.keys.schema)):
            raise click.ClickException(advice)
        yield store
    except UnknownCause as error:
        raise click.UsageError(str(error)) from error
    except StoreError as error:
        raise click.ClickException(unanswered(error)) from error
    finally:
        store.redis.close()
