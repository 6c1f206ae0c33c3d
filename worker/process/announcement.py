"""Each worker process announces its handlers, so that it is noticed when those of one queue go on differing.

While a deploy is under way they do, and nothing is lost: what some lack waits for those that have it. What differs for
longer is a mistake: a host that was left out, a misspelt setting, another version.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError
from redis import Redis
from redis.exceptions import RedisError

from credhook.store import Keys
from credhook.store.announcements import ANNOUNCE, LASTS, digests, version

if TYPE_CHECKING:  # It imports a client of the platform: half of the time that `credhook status` would take.
    from credhook.worker.handlers.registry import Registry

log = structlog.get_logger("credhook.worker")

#: Seconds that a deploy may take, during which workers differ.
DEPLOY: Final = 600
#: Rounds that an announcement lasts unless it is renewed, if they take longer than `LASTS`.
_ROUNDS: Final = 3
#: Handlers that one line of the log names.
_MOST_NAMED: Final = 20

#: Handler's name → the types that it wants.
Wants = Mapping[str, tuple[str, ...]]


class Platform(BaseModel):
    """Under which keys, all digests, a process shares what it knows of the platform; its rate is per second."""

    model_config = ConfigDict(frozen=True)

    circuit: str
    token: str
    rate: float | None = None


class Announcement(BaseModel):
    """What a process says of itself; older versions say no more than the first three.

    Attributes:
        handlers: name → the event types that it wants.
        version: of this package.
        host: where the process runs.
        lasts: seconds that this holds unless it is renewed.
        slots: events that it has under way at most.
        in_flight: events that it had under way when it said so; None if it does not know.
        platform: where it shares what it knows of the platform.
        alike: digests of the settings that all workers of a queue should have alike.
    """

    model_config = ConfigDict(frozen=True)

    handlers: dict[str, tuple[str, ...]]
    version: str
    host: str
    lasts: float = LASTS
    slots: int | None = None
    in_flight: int | None = None
    platform: Platform | None = None
    alike: dict[str, str] = {}


class Difference(NamedTuple):
    """The names of handlers that not all workers have, or not for the same types: this process, or some other."""

    only_here: tuple[str, ...]
    only_elsewhere: tuple[str, ...]


def difference(mine: Wants, others: Iterable[Wants]) -> Difference | None:
    """What differs between this process's handlers and those of any other; None if nothing does. Pure."""
    here, elsewhere = set[str](), set[str]()
    for theirs in others:
        here |= {name for name, types in mine.items() if theirs.get(name) != types}
        elsewhere |= {name for name, types in theirs.items() if mine.get(name) != types}
    return Difference(tuple(sorted(here)), tuple(sorted(elsewhere))) if here or elsewhere else None


class Announcements:
    """What the worker processes of one queue say of their handlers, seen by one of them."""

    def __init__(
        self,
        redis: Redis,
        *,
        queue: str,
        token: str,
        registry: "Registry",
        host: str,
        interval: float,
        slots: int | None = None,
        in_flight: Callable[[], int | None] = lambda: None,
        platform: Platform | None = None,
        alike: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """`interval`: seconds between two rounds; `slots`: events under way at most; `in_flight`: how many just now.

        `alike` holds the settings that all workers of the queue should have alike: variable → its value.
        """
        self._redis = redis
        self._key = Keys(queue).handlers
        self._token = token
        handlers = {one.name: tuple(sorted(one.types)) for one in registry.handlers}
        lasts = max(LASTS, _ROUNDS * interval)
        self._mine = Announcement(
            handlers=handlers,
            version=version(),
            host=host,
            lasts=lasts,
            slots=slots,
            platform=platform,
            alike=digests(alike),
        )
        self._in_flight = in_flight
        self._lasts = int(lasts * 1_000)
        self._script = redis.register_script(ANNOUNCE)
        #: What has been said in the log.
        self._said: Difference | None = None

    def announce(self) -> None:
        """One round: renew the announcement, and say in the log, once, if others have differed for too long.

        Raises:
            RedisError: Redis failed.
        """
        mine = self._mine.model_copy(update={"in_flight": self._in_flight()}).model_dump_json()
        now, since, *rest = self._script(keys=[self._key], args=[self._token, mine, self._lasts])
        long_ago = now - DEPLOY * 1_000
        lasting = [said for began, said in zip(rest[::2], rest[1::2], strict=True) if began <= long_ago]
        others = [one for said in lasting if (one := read(said))] if since <= long_ago else []
        found = difference(self._mine.handlers, [one.handlers for one in others])
        if found and found != self._said:
            differing = [one for one in others if one.handlers != self._mine.handlers]
            log.warning(
                "handlers_differ",
                only_here=found.only_here[:_MOST_NAMED],
                only_elsewhere=found.only_elsewhere[:_MOST_NAMED],
                hosts=sorted({one.host for one in differing})[:_MOST_NAMED],
                versions=sorted({one.version for one in differing})[:_MOST_NAMED],
                hint="start all workers of the queue with the same version and CREDHOOK_HANDLERS, or give those that "
                "are to differ a queue of their own",
            )
        self._said = found

    def leave(self) -> None:
        """Announce nothing any more."""
        try:
            self._redis.hdel(self._key, self._token)
        except RedisError as error:
            log.debug("announcement_not_withdrawn", error=type(error).__name__)


def read(said: bytes) -> Announcement | None:
    """Another process's announcement, unless somebody else has written it."""
    try:
        return Announcement.model_validate_json(said)
    except ValidationError:
        return None
