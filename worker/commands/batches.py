"""Long work in batches, with a progress bar, and one line of results at the end."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final, TypeVar

import click

from credhook.store.errors import StoreError
from credhook.store.health import unanswered

T = TypeVar("T")

#: Events that one script changes. It blocks Redis for a few milliseconds.
BATCH: Final = 200


@dataclass(slots=True)
class BulkResult:
    """The outcomes of a bulk operation on `total` events, and why it ended early, or ""."""

    total: int
    outcomes: Counter[str] = field(default_factory=Counter)
    stopped: str = ""


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`."""
    rest = iter(items)
    return iter(lambda: list(islice(rest, size)), [])


def bar(what: str, total: int | None = None) -> AbstractContextManager[Any]:
    """Return a progress bar, hidden unless standard error is a terminal. Its `update` advances it by a number."""
    steps = count() if total is None else None  # click wants to know how far it is, or else something to count.
    hidden = not sys.stderr.isatty()
    return click.progressbar(steps, length=total, label=what, show_pos=True, file=sys.stderr, hidden=hidden)


def work_through(items: Sequence[T], step: Callable[[list[T]], Sequence[bytes]], what: str) -> BulkResult:
    """Call `step` for each batch, until all are done, Ctrl-C is pressed, or Redis fails.

    `step` returns the outcome of each item; `what` is the word beside the bar.
    """
    result = BulkResult(len(items))
    try:
        with bar(what, len(items)) as progress:
            for batch in batched(items, BATCH):
                result.outcomes.update(outcome.decode() for outcome in step(batch))
                progress.update(len(batch))
    except KeyboardInterrupt:
        result.stopped = "Stopped by Ctrl-C"
    except StoreError as error:
        result.stopped = unanswered(error)
    return result


def report(result: BulkResult, verb: str, done: Mapping[str, str], left: Mapping[str, str], *, as_json: bool) -> None:
    """Print the number of events that were done and left, with the verb in the past tense. Exit if none could.

    `done` and `left` map outcomes to words that follow their number, or "".
    """
    finished = sum(result.outcomes[name] for name in done)
    remaining = {name: result.outcomes[name] for name in left if result.outcomes[name]}
    if as_json:
        click.echo(json.dumps({verb: finished, "left": remaining, "complete": not result.stopped}))
    elif not result.stopped:
        click.echo(sentence(result.outcomes, verb, done, left))
    if result.stopped:
        # The last batch may have been done, and its reply lost.
        raise click.ClickException(
            f"{verb} at least {finished} of {result.total}; run the command again for the others. {result.stopped}"
        )
    if remaining and not finished:
        sys.exit(1)


def sentence(outcomes: Counter[str], verb: str, done: Mapping[str, str], left: Mapping[str, str]) -> str:
    """Return the result as one line, such as `replayed 190, left 10 (7 open, 3 changed meanwhile)`. Pure."""
    line = f"{verb} {sum(outcomes[name] for name in done)}" + _in_brackets(outcomes, done)
    remaining = sum(outcomes[name] for name in left)
    return f"{line}, left {remaining}{_in_brackets(outcomes, left)}" if remaining else line


def _in_brackets(outcomes: Counter[str], words: Mapping[str, str]) -> str:
    said = [f"{outcomes[name]} {why}" for name, why in words.items() if why and outcomes[name]]
    return f" ({', '.join(said)})" if said else ""


def ask(consequence: str) -> None:
    """Return if the operator agrees to the consequence. Otherwise exit."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{consequence} There is no terminal to ask at: say --yes if that is meant")
    click.confirm(f"{consequence} Go on?", abort=True, err=True)
