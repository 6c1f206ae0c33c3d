"""Looking for events: what belongs to a selection is decided in Redis, by select.lua, and only that comes here."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from redis import Redis

from credhook.events import EVENT_TYPES
from credhook.store import BUCKETS, LATEST, OTHER, Keys, bucket, lua, place
from credhook.worker.commands.search.batches import batched
from credhook.worker.commands.search.selection import EventSummary, Selection

_SELECT: Final = lua.load("select.lua")
_LENGTHS: Final = lua.load("lengths.lua")

#: Events that one script looks at: it blocks Redis for a few milliseconds then.
PAGE: Final = 1_000
#: The same where hardly any concerns the handler, or is in the state, that is meant: these cost half, and a look into
#: all streams has its price, too. And the same where hardly any is of the resource: most cost next to nothing.
PAGE_OF_OTHERS: Final = 2_000
PAGE_OF_OTHER_RESOURCES: Final = 4_000
#: Part of it that a span is meant to bring, so that few spans bring too much.
_FILLED: Final = 0.8
#: Milliseconds that the first of the spans of time is long, if nothing better is known; the next are as long as a page
#: wants.
FIRST_SPAN: Final = 1_000
#: By how much more than is wanted is looked at first: events do not come evenly.
_TO_SPARE: Final = 1.5

#: State and type → how many events.
Counts = Counter[tuple[str, str]]


class Candidate(NamedTuple):
    """An event that may be meant, and the time that it is listed by, in ms, should its record not say when it came."""

    webhook_id: bytes
    time: int


class Span(NamedTuple):
    """A span of time that was looked through, and what of it is meant."""

    start: int
    end: int
    looked: int
    reply: list[Any]


class Search:
    """Finds, or counts, the events that a selection means, the limit and the cursor left aside."""

    def __init__(
        self,
        redis: Redis,
        index: Keys,
        selection: Selection,
        *,
        sets: Sequence[str] = (),
        skip: Iterable[str] = (),
        counting: bool = False,
        forgotten: bool = False,
        moved: bool = False,
    ) -> None:
        """Prepare.

        Args:
            redis: the ledger.
            index: its queue's keys.
            selection: which events.
            sets: sorted sets one of which holds the event; none where it does not matter.
            skip: events that are not looked for.
            counting: whether numbers are wanted.
            forgotten: whether events that are listed and have no record count, with neither state nor type.
            moved: whether what is looked through are sorted sets of states, by when their events moved. One that is in
                several counts once, in the first; the others are looked for there, so that should be the largest.
        """
        self._index = index
        self._script = redis.register_script(_SELECT)
        self._span = selection.span
        self._page_of_others = PAGE_OF_OTHERS if selection.handler or sets else PAGE
        if selection.resource:
            self._page_of_others = PAGE_OF_OTHER_RESOURCES
        self._what: dict[str, Any] = {
            "types": dict.fromkeys(selection.types, True) or None,
            "states": dict.fromkeys(selection.states, True) or None,
            "resource": selection.resource,
            "handler": selection.handler,
            "sets": list(sets) or None,
            "skip": {one: True for one in skip if one.isascii()},
            "counting": counting,
            "moved": moved,
            "forgotten": forgotten,
            "streams": 0,
            "from": self._span[0],
            "until": self._span[1],
            "most": 0,
        }

    def among(self, candidates: Iterable[Candidate]) -> Iterator[list[Any]]:
        """Look at these events; the replies, page by page.

        Raises:
            RedisError: Redis failed.
        """
        for page in batched(candidates, PAGE):
            arguments = [part for one in page for part in one]
            _, *reply = self._script(keys=[self._index.prefix], args=[json.dumps(self._what), *arguments])
            yield reply

    def through(self, keys: Sequence[str], top: int, first: int = FIRST_SPAN) -> Iterator[Span]:
        """Look through what is listed under these keys, from `top`, in ms, back to where the selection begins.

        Hardly anything is younger than `top`; `first` is how many ms before that to look at to begin with.

        Raises:
            RedisError: Redis failed.
        """
        bottom, end = self._span
        length = max(0, end - top) + first
        late = self._index.late
        streams = [] if self._what["moved"] else [key for key in keys if not key.startswith(late)]
        ordered = streams + [key for key in keys if self._what["moved"] or key.startswith(late)]
        page = PAGE
        while end > bottom and ordered:
            start = max(bottom, end - length)
            most = page if end - start > 1 else 0
            what = {**self._what, "streams": len(streams), "from": start, "until": end, "most": most}
            looked, *reply = self._script(keys=[self._index.prefix, *ordered], args=[json.dumps(what)])
            # Of a span that begins before `top` and ends after it, the former part is what holds events.
            holding = top - start if start < top < end else end - start
            if looked < 0:
                length = max(1, end - start - holding + holding // 4)
                top = top if start < top else bottom  # There is a lot that is younger: clocks were set.
                continue
            yield Span(start, end, looked, reply)
            page = self._page_of_others if len(reply) < looked else PAGE
            if end > top == start:
                length = first
            else:
                length = max(1, min(holding * 8, int(holding * page * _FILLED) // max(looked, 1)))
            end = start


def summaries(reply: Sequence[Any]) -> list[EventSummary]:
    """The events of a reply."""
    parts = [part.decode(errors="surrogateescape") for part in reply]
    return [
        EventSummary(parts[n], sys.intern(_shown(parts[n + 1])), sys.intern(parts[n + 2]), int(parts[n + 3]))
        for n in range(0, len(parts), 4)
    ]


def counts(reply: Sequence[Any]) -> Counts:
    """The numbers of a reply."""
    return Counter(
        {
            (reply[n].decode(), reply[n + 1].decode(errors="backslashreplace")): cast(int, reply[n + 2])
            for n in range(0, len(reply), 3)
        }
    )


def _shown(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def lengths(redis: Redis, index: Keys, types: Iterable[str] = (), resource: str | None = None) -> dict[str, int]:
    """The keys under which events are listed → how many: of these types, or all, and of that resource's bucket, or all.

    Raises:
        RedisError: Redis failed.
    """
    buckets = range(BUCKETS) if resource is None else (bucket(resource),)
    # An event whose type an older version did not know stands among the others until it is replayed.
    names = [place(one, each) for one in (*(types or EVENT_TYPES), OTHER) for each in buckets]
    keys = [prefix + name for prefix in (index.listed, index.late) for name in names]
    reply = cast(list[Any], redis.register_script(_LENGTHS)(keys=keys))
    return dict(zip(map(bytes.decode, reply[::2]), reply[1::2], strict=True))


def first_span(redis: Redis, index: Keys, listed: Mapping[str, int], end: int, wanted: int) -> int:
    """How many ms before `end` the last `wanted` of the listed events have come, if all came as those of one list did.

    `listed`: keys → how many are listed there. At the most as many are looked for as one script looks at.

    Raises:
        RedisError: Redis failed.
    """
    share = min(wanted * _TO_SPARE, PAGE * _FILLED) / max(1, sum(listed.values()))
    longest = max(listed, key=listed.__getitem__, default=index.late)
    if longest.startswith(index.late):
        return FIRST_SPAN
    oldest = cast(list[tuple[bytes, Any]], redis.xrange(longest, count=1))
    began = int(oldest[0][0].partition(b"-")[0]) if oldest else end
    return max(FIRST_SPAN, int((end - began) * share))


def clock(redis: Redis) -> int:
    """Redis's, in ms since the epoch."""
    seconds, microseconds = redis.time()
    return min(seconds * 1_000 + microseconds // 1_000, LATEST)
