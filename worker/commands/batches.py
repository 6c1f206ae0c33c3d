"""Long work in batches, with a progress bar, Ctrl-C between two batches, and one line of results at the end."""

import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

import click

from credhook.store.errors import StoreError
from credhook.store.health import unanswered

T = TypeVar("T")

#: Events that one script changes. It blocks Redis for a few milliseconds.
BATCH: Final = 200
#: Exit code after Ctrl-C, as shells expect it.
INTERRUPTED: Final = 130


@dataclass(slots=True)
class BulkResult:
    """The outcomes of a bulk operation on `total` events."""

    total: int
    outcomes: Counter[str] = field(default_factory=Counter)
    #: True if Ctrl-C ended the work early.
    interrupted: bool = False
    #: The class of the Redis error that ended it, or "".
    error: str = ""


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`."""
    rest = iter(items)
    return iter(lambda: list(islice(rest, size)), [])


@contextmanager
def bar(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if standard error is a terminal. Yield a function that advances it by a number."""
    # Threads of the console get no bar: it would paint over the log.
    hidden = not sys.stderr.isatty() or threading.current_thread() is not threading.main_thread()
    unknown: Iterator[None] = (None for _ in ())  # Has no length, unlike an empty list.
    with click.progressbar(unknown, total, what, show_pos=True, hidden=hidden, file=sys.stderr) as progress:
        yield progress.update


def work_through(items: Sequence[T], step: Callable[[list[T]], Sequence[bytes]], what: str) -> BulkResult:
    """Call `step` for each batch, until all are done, Ctrl-C is pressed, or Redis fails.

    `step` returns the outcome of each item; `what` is the word beside the bar.
    """
    result = BulkResult(len(items))
    with bar(what, len(items)) as advance, _ctrl_c() as asked:
        for batch in batched(items, BATCH):
            if asked.is_set():
                result.interrupted = True
                break
            try:
                result.outcomes.update(outcome.decode() for outcome in step(batch))
            except StoreError as error:
                result.error = unanswered(error)
                break
            advance(len(batch))
    return result


@contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """Turn Ctrl-C into an event that is checked between two batches, so that each finished script is counted."""
    asked = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def report(result: BulkResult, verb: str, done: Mapping[str, str], left: Mapping[str, str], *, as_json: bool) -> None:
    """Print the number of events that were done and left, with the verb in the past tense. Exit if none could.

    `done` and `left` map outcomes to words that follow their number, or "".
    """
    finished = sum(result.outcomes[name] for name in done)
    remaining = {name: result.outcomes[name] for name in left if result.outcomes[name]}
    complete = not (result.interrupted or result.error)
    if as_json:
        click.echo(json.dumps({verb: finished, "left": remaining, "complete": complete}))
    elif not result.error:
        line = sentence(result.outcomes, verb, done, left)
        if result.interrupted:
            line += f"; stopped by Ctrl-C before the other {result.total - result.outcomes.total()}"
        click.echo(line)
    if result.error:
        # The reply of the last batch may have been lost after it was done.
        raise click.ClickException(
            f"{verb} at least {finished} of {result.total}; run the command again for the others. {result.error}"
        )
    if result.interrupted:
        sys.exit(INTERRUPTED)
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


@contextmanager
def interruptible() -> Iterator[None]:
    """Exit with one line on Ctrl-C, while nothing has been changed."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped; nothing was changed", err=True)
        sys.exit(INTERRUPTED)


def ask(consequence: str) -> None:
    """Return if the operator agrees to the consequence. Otherwise exit."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{consequence} There is no terminal to ask at: say --yes if that is meant")
    if not click.confirm(f"{consequence} Go on?", err=True):
        click.echo("nothing was changed", err=True)
        sys.exit(1)
