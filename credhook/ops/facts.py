"""What there is to know of a fleet, as it was at one moment. Times are in seconds, ages count back from that moment."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from credhook.store.health import Check


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)


class Server(_Facts):
    """What Redis says of itself. Memory is in bytes, a bound of 0 is none; `fsync` is "" where it will not tell."""

    address: str
    version: str
    used_memory: int
    maxmemory: int
    appendonly: bool
    fsync: str
    checks: tuple[Check, ...]


class Counts(_Facts):
    """Events of the queue, by where they stand; None where somebody else has written to the key.

    Attributes:
        open: neither done nor given up.
        queued: jobs that wait for a worker.
        in_flight: that a worker has under way.
        retrying: that wait for their next attempt.
        dead: given up, kept for replay.
        dead_recently: of these, within the last day.
        unhandled: that wait for a handler, by type, where there are any.
        quarantined: of a type that is not known yet.
        unreadable: whose record somebody else has written to.
    """

    open: int | None = 0
    queued: int | None = 0
    in_flight: int | None = 0
    retrying: int | None = 0
    dead: int | None = 0
    dead_recently: int | None = 0
    unhandled: dict[str, int] = {}
    quarantined: int | None = 0
    unreadable: int | None = 0


class Process(_Facts):
    """What receivers and workers have in common.

    Attributes:
        age: since when it has announced itself.
        alike: digests of settings that all of its kind should have alike.
    """

    queue: str
    host: str
    version: str
    age: float
    alike: dict[str, str] = {}


class Receiver(Process):
    """A receiver process, as it has announced itself; `per_second` is over its last ten seconds or so."""

    strict: bool
    per_second: float
    idle: float | None
    mark: str
    unauthenticated: int = 0
    outside_tolerance: int = 0
    refused: float | None = None


class Worker(Process):
    """A worker process, as it has announced itself; None is what it does not say."""

    handlers: dict[str, tuple[str, ...]]
    in_flight: int | None
    slots: int | None


class Platform(_Facts):
    """What the fleet knows of the platform.

    Attributes:
        breaker: `closed`, `open` or `half open`.
        paused: until calls begin again, 0 if they are made.
        rate: requests per second that the fleet may make, or None for any number.
        token: until the shared token is renewed; None where there is none.
        refused: whether the token endpoint has refused one within the last seconds.
    """

    breaker: str
    paused: float
    rate: float | None
    token: float | None
    refused: bool


class Database(_Facts):
    """Another database of the same Redis: how many receivers and workers of this queue's are alive there."""

    number: int
    receivers: int
    workers: int


class Facts(_Facts):
    """All of it. Receivers and workers are those of all queues in this database of Redis; `oldest_open` is an age.

    There is one platform, unless workers have different settings. `suspended`: `rq suspend` has stopped the workers.
    `elsewhere` is looked for only where there are no receivers, or no workers of this queue.
    """

    queue: str
    server: Server
    counts: Counts = Counts()
    oldest_open: float | None = None
    suspended: bool = False
    receivers: tuple[Receiver, ...] = ()
    workers: tuple[Worker, ...] = ()
    platforms: tuple[Platform, ...] = ()
    elsewhere: tuple[Database, ...] = ()

    @property
    def ours(self) -> tuple[Worker, ...]:
        """The workers of this queue."""
        return tuple(one for one in self.workers if one.queue == self.queue)

    def as_json(self) -> dict[str, Any]:
        """All but the receivers' marks and the digests of settings, which are compared and not shown."""
        never: Any = {"receivers": {"__all__": {"mark", "alike"}}, "workers": {"__all__": {"alike"}}}
        return self.model_dump(mode="json", exclude={**never, "server": {"checks"}})
