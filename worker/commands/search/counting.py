"""How many events there are of each state and type.

Of all events this is known without a look at each: of every type so many are listed, those that are not done stand in
the sorted sets of their states, and the rest is done. No number is kept that could differ from what it counts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from redis import Redis

from credhook.store import OTHER, Keys, State
from credhook.worker.commands.search.batches import bar
from credhook.worker.commands.search.reading import find, list_what_is_missing, members, present_sets
from credhook.worker.commands.search.search import FIRST_SPAN, PAGE, Counts, Search, clock, counts, lengths
from credhook.worker.commands.search.selection import Selection


def count(redis: Redis, index: Keys, selection: Selection, *, retention: int) -> Counts:
    """Count the events that are meant; a settled one is remembered for `retention` seconds.

    Raises:
        RedisError: Redis failed.
    """
    if selection.limit or selection.after or selection.ids or selection.cause:
        return Counter((one.state, one.type) for one in find(redis, index, selection))
    if sets := selection.indexes(index):
        if selection.since is None and selection.until is None:
            return _moved(redis, index, selection, sets)
        search = Search(redis, index, selection, counting=True)
        return sum(map(counts, search.among(members(redis, present_sets(redis, sets)))), Counts())
    list_what_is_missing(redis, index)
    if selection == Selection(selection.states, selection.types):
        numbers = _all(redis, index, retention)
        return Counter({(state, kind): number for (state, kind), number in numbers.items()
                        if (not selection.states or state in selection.states)
                        and (not selection.types or kind in selection.types)})  # fmt: skip
    return sum(_through(redis, index, selection, lengths(redis, index, selection.types, selection.resource)), Counts())


def _through(redis: Redis, index: Keys, selection: Selection, keys: Iterable[str]) -> Iterator[Counts]:
    """Count what is listed under these keys by looking at each."""
    with bar("counting") as advance:
        for span in Search(redis, index, selection, counting=True).through(list(keys), clock(redis)):
            advance(span.looked)
            yield counts(span.reply)


def _all(redis: Redis, index: Keys, retention: int) -> Counts:
    listed = Counter[str]()
    keys = defaultdict[str, list[str]](list)
    for key, number in lengths(redis, index).items():
        kind = key.rpartition(":")[0].rpartition(":")[2]
        listed[kind] += number
        keys[kind].append(key)
    others, _ = keys.pop(OTHER, []), listed.pop(OTHER, None)
    before = clock(redis) - retention * 1_000
    forgotten = {kind: _forgotten(redis, index, theirs, before) for kind, theirs in keys.items()}
    not_done = _not_done(redis, index)
    total = Counts(not_done)
    for kind, number in listed.items():
        unfinished = sum(
            of_state for (state, one), of_state in not_done.items() if one == kind and state != State.QUARANTINED
        )
        total[State.DONE, kind] = max(0, number - forgotten[kind] - unfinished)
    return +sum(_through(redis, index, Selection(frozenset({State.DONE})), others), total)


def _forgotten(redis: Redis, index: Keys, keys: Iterable[str], before: int) -> int:
    """How many are listed under these keys though they have been forgotten: nobody has swept them away yet."""
    old = Selection(until=datetime.fromtimestamp(before / 1_000, UTC))
    spans = Search(redis, index, old, counting=True, forgotten=True).through(list(keys), 0)
    return sum(counts(span.reply)["", ""] for span in spans)


def _not_done(redis: Redis, index: Keys) -> Counts:
    """Return how many events of each type are not done, by their states."""
    sets = (index.open, index.dead, *index.all_unhandled, index.quarantined, index.unreadable)
    return _moved(redis, index, Selection(frozenset(State) - {State.DONE}), sets)


def _moved(redis: Redis, index: Keys, selection: Selection, sets: Iterable[str]) -> Counts:
    """Count what stands in these sorted sets of states, whenever it came."""
    present = present_sets(redis, sets)
    search = Search(redis, index, selection, counting=True, moved=True)
    top = clock(redis)
    first = top if sum(present.values()) <= PAGE else FIRST_SPAN
    spans = search.through(sorted(present, key=present.__getitem__, reverse=True), top, first)
    return sum((counts(span.reply) for span in spans), Counts())
