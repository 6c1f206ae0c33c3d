"""What the fleet shares about a platform, in Redis: its pause, the pace after a refusal, and the rate of calls.

credhook:<queue>:platform:<digest of the API's URL>:pause    "<ms> <cause>"; expires with the pause
credhook:<queue>:platform:<digest of the API's URL>:pace     "<ms> <calls per second>" that passed before a 429
credhook:<queue>:platform:<digest of the API's URL>:bucket   when the token bucket will be full again

platform.lua decides. The claim script reads the same keys, so that no event is claimed that may not be fetched.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from credhook.store import Keys
from credhook.store.store import AsyncStore, SyncStore

_MICROSECONDS: Final = 1_000_000


def platform_key(api_url: str, queue: str) -> str:
    """Return the beginning of a platform's keys. Processes with the same API URL and queue share them."""
    return Keys(queue).platform + sha256(api_url.encode()).hexdigest()[:16]


class Allowance(NamedTuple):
    """What Redis says about calls to the platform at one moment.

    Attributes:
        pause: seconds for which the fleet does not call; 0 without a pause.
        wait: seconds until the bucket holds a token, or until the reserved token is there.
        limited: True if each call needs a token.
    """

    pause: float = 0.0
    wait: float = 0.0
    limited: bool = False

    @property
    def seconds(self) -> float:
        """Return the seconds until a call may be sent; 0 if now."""
        return max(self.pause, self.wait)

    @classmethod
    def read(cls, pause: int, wait: int, limited: int) -> "Allowance":
        """Return the allowance in a script's reply: ms, microseconds, 1 or 0."""
        return cls(pause / 1_000, wait / _MICROSECONDS, bool(limited))


class PauseReply(NamedTuple):
    """The reply to a new pause.

    Attributes:
        before: seconds that an earlier pause would still have lasted; 0 without a pause.
        passed: calls per second that passed before a 429; None for another cause or a shorter pause.
    """

    before: float
    passed: float | None


class FleetLimits:
    """The pause and the rate of one platform. `rate`: calls per second of the fleet, None for no limit of ours."""

    def __init__(self, store: AsyncStore, api_url: str, *, rate: float | None, longest_wait: float) -> None:
        """`longest_wait`: seconds that a call may wait for its token."""
        self._store = store
        self._key = platform_key(api_url, store.queue)
        self._limits = rate or 0, int(longest_wait * _MICROSECONDS)

    def for_claims(self, unused: int) -> Sequence[str | float]:
        """Return the arguments of take.lua. `unused`: tokens that earlier claims took and no call needed."""
        return self._key, *self._limits, unused

    async def permit(self) -> tuple[bool, Allowance]:
        """Ask for one call that no claim has counted. Return True if it may be sent after the allowance's wait."""
        permitted, *allowance = await self._store.run("permit", self._limits, keys=[self._key])
        return bool(permitted), Allowance.read(*allowance)

    async def pause(self, seconds: float, cause: str, *, answers: int) -> PauseReply:
        """Pause the fleet. A longer pause stays. After a 429 a pace begins.

        `answers`: calls of this process that were answered within a second before.
        """
        arguments = [round(seconds * 1_000), cause, answers, self._limits[0]]
        before, passed = await self._store.run("pause", arguments, keys=[self._key, self._store.keys.heartbeats])
        return PauseReply(before / 1_000, float(passed) if passed else None)


class PlatformPause(NamedTuple):
    """The pause of a platform as an observer sees it.

    Attributes:
        seconds: how long it lasts from now; 0 without a pause.
        cause: a status, or the class of an error; "" without a pause.
        passed: calls per second that passed before the platform answered 429, while this limits the fleet.
    """

    seconds: float = 0.0
    cause: str = ""
    passed: float | None = None


def request_pause(pipeline: Any, key: str) -> None:
    """Add to the pipeline what `read_pause` reads. `key`: see `platform_key`."""
    pipeline.get(f"{key}:pause")
    pipeline.pttl(f"{key}:pause")
    pipeline.get(f"{key}:pace")


def read_pause(pause: bytes | None, left_ms: int, pace: bytes | None) -> PlatformPause:
    """Return the pause in the replies. If Redis's clock was set back, the pause ends after its own length."""
    length, _, cause = (pause or b"0 ").partition(b" ")
    passed = float(pace.partition(b" ")[2]) if pace else None
    return PlatformPause(max(0, min(left_ms, int(length))) / 1_000, cause.decode(errors="replace"), passed)


def pause_of(store: SyncStore, key: str) -> PlatformPause:
    """Return the pause of a platform. `key`: see `platform_key`."""
    pipeline = store.redis.pipeline(transaction=False)
    request_pause(pipeline, key)
    return read_pause(*pipeline.execute())
