"""Change many events in batches, and say in one line what became of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, TypeVar

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


def work_through(
    items: Sequence[T], step: Callable[[list[T]], Sequence[bytes]], advance: Callable[[int], None]
) -> BulkResult:
    """Call `step` for each batch, until all are done, Ctrl-C is pressed, or Redis fails.

    `step` returns the outcome of each item; `advance` gets the number of items that were worked on since.
    """
    result = BulkResult(len(items))
    try:
        for batch in batched(items, BATCH):
            result.outcomes.update(outcome.decode() for outcome in step(batch))
            advance(len(batch))
    except KeyboardInterrupt:
        result.stopped = "Stopped by Ctrl-C"
    except StoreError as error:
        result.stopped = unanswered(error)
    return result


def sentence(outcomes: Counter[str], verb: str, done: Mapping[str, str], left: Mapping[str, str]) -> str:
    """Return the result as one line, such as `replayed 190, left 10 (7 open, 3 changed meanwhile)`."""
    line = f"{verb} {sum(outcomes[name] for name in done)}" + _in_brackets(outcomes, done)
    remaining = sum(outcomes[name] for name in left)
    return f"{line}, left {remaining}{_in_brackets(outcomes, left)}" if remaining else line


def _in_brackets(outcomes: Counter[str], words: Mapping[str, str]) -> str:
    parts = [f"{outcomes[name]} {why}" for name, why in words.items() if why and outcomes[name]]
    return f" ({', '.join(parts)})" if parts else ""
