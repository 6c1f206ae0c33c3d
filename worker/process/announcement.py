"""Each worker process announces its handlers, so that it is noticed when those of one queue go on differing.

While a deploy is under way they do, and nothing is lost: what some lack waits for those that have it. What differs for
longer is a mistake: a host that was left out, a misspelt setting, another version.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError
from redis import Redis
from redis.exceptions import RedisError

from credhook.ledger import Index, lua
from credhook.worker.handlers.registry import Registry

log = structlog.get_logger("credhook.worker")

#: Seconds that a deploy may take, during which workers differ.
DEPLOY: Final = 600
#: Seconds that an announcement lasts unless it is renewed, or so many rounds if they take longer.
_LASTS: Final = 60.0
_ROUNDS: Final = 3
#: Handlers that one line of the log names.
_MOST_NAMED: Final = 20

_ANNOUNCE: Final = lua.load("credhook.worker.process/announce.lua")

#: Handler's name → the types that it wants.
Wants = Mapping[str, tuple[str, ...]]


class Announcement(BaseModel):
    """What a process says of itself.

    Attributes:
        handlers: name → the event types that it wants.
        version: of this package.
        host: where the process runs.
    """

    model_config = ConfigDict(frozen=True)

    handlers: dict[str, tuple[str, ...]]
    version: str
    host: str


class Difference(NamedTuple):
    """The names of handlers that not all workers have, or not for the same types.

    Attributes:
        only_here: that this process has, and some other lacks.
        only_elsewhere: that some other has, and this one lacks.
    """

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

    def __init__(self, redis: Redis, *, queue: str, token: str, registry: Registry, host: str, interval: float) -> None:
        """Prepare.

        Args:
            redis: the ledger.
            queue: whose workers.
            token: this process's.
            registry: its handlers.
            host: where it runs.
            interval: seconds between two rounds of it.
        """
        self._redis = redis
        self._key = Index(queue).handlers
        self._token = token
        handlers = {one.name: tuple(sorted(one.types)) for one in registry.handlers}
        self._mine = Announcement(handlers=handlers, version=_version(), host=host)
        self._lasts = int(max(_LASTS, _ROUNDS * interval) * 1_000)
        self._script = redis.register_script(_ANNOUNCE)
        #: What has been said in the log.
        self._said: Difference | None = None

    def announce(self) -> None:
        """One round: renew the announcement, and say in the log, once, if others have differed for too long.

        Raises:
            RedisError: Redis failed.
        """
        mine = self._mine.model_dump_json()
        now, since, *rest = self._script(keys=[self._key], args=[self._token, mine, self._lasts])
        long_ago = now - DEPLOY * 1_000
        lasting = [said for began, said in zip(rest[::2], rest[1::2], strict=True) if began <= long_ago]
        others = [one for said in lasting if (one := _read(said))] if since <= long_ago else []
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


def _read(said: bytes) -> Announcement | None:
    """Another process's announcement, unless somebody else has written it."""
    try:
        return Announcement.model_validate_json(said)
    except ValidationError:
        return None


def _version() -> str:
    try:
        return version("credhook")
    except PackageNotFoundError:  # Started from a folder that is installed nowhere.
        return "unknown"
