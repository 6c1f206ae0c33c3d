"""When the whole ledger is looked through for what is not listed, and when the sorted sets of listed events are pruned.

The former once after the upgrade; once more a day later, since old and new receivers may have run side by side; and
then every 30 days, since the older version may have come back for a while. The latter once a day.

What asks Redis raises RedisError where that fails.
"""

from typing import Any, Final, NamedTuple, Self, cast

from redis import Redis
from redis.exceptions import ResponseError

from credhook.store import Keys

#: Milliseconds between two prunings, and between the first two rounds; between any later two.
DAY: Final = 86_400_000
MONTH: Final = 30 * DAY
#: Digits of the longest time that can be written.
_DIGITS: Final = 15


class Rounds(NamedTuple):
    """When each was done, in ms by Redis's clock; None where it never was.

    Attributes:
        first: the first round through the whole ledger that is known of.
        whole: the last of them, which is all that the version before reads and writes.
        pruned: the last pruning.
    """

    first: int | None = None
    whole: int | None = None
    pruned: int | None = None

    def whole_is_due(self, now: int) -> bool:
        """Whether the whole ledger is to be looked through. Pure."""
        if self.whole is None:
            return True
        repeated = self.first is not None and self.whole - self.first >= DAY
        return not 0 <= now - self.whole < (MONTH if repeated else DAY)

    def prune_is_due(self, now: int) -> bool:
        """Whether the sorted sets are to be pruned. Pure."""
        return self.pruned is None or not 0 <= now - self.pruned < DAY

    def after_whole(self, now: int) -> Self:
        """What is known once the whole ledger has been looked through. Pure."""
        if self.whole is None:  # Whatever is known of a first, it was of a ledger that is no more.
            return self._replace(first=now, whole=now)
        first = self.whole if self.first is None else self.first
        return self._replace(first=min(first, now), whole=now)


def clock(redis: Redis) -> int:
    """Milliseconds since the epoch, as Redis sees it: hosts may disagree."""
    seconds, microseconds = redis.time()
    return int(seconds * 1_000 + microseconds // 1_000)


def read_rounds(redis: Redis, index: Keys) -> Rounds:
    """What has been done so far."""
    whole = last_whole(redis, index)
    try:
        first, pruned = cast("list[bytes | None]", redis.hmget(index.rounds, "first", "pruned"))
    except ResponseError:  # Of another type: somebody else has written it. A round through all of it prunes, too.
        return Rounds(None, whole, whole)
    return Rounds(_time(first), whole, _time(pruned))


def last_whole(redis: Redis, index: Keys) -> int | None:
    """When all that the ledger held was last seen to be listed, in ms; None if that was never."""
    try:
        return _time(cast("bytes | None", redis.get(index.whole)))
    except ResponseError:  # Likewise.
        return None


def write_rounds(redis: Redis, index: Keys, rounds: Rounds) -> None:
    """Note what has been done."""
    if rounds.whole is not None:
        redis.set(index.whole, rounds.whole)
    noted: dict[Any, Any] = {
        name: when for name, when in (("first", rounds.first), ("pruned", rounds.pruned)) if when is not None
    }
    try:
        redis.hset(index.rounds, mapping=noted)
    except ResponseError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise


def _time(text: bytes | None) -> int | None:
    return int(text) if text and text.isdigit() and len(text) <= _DIGITS else None
