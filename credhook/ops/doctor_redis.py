"""Redis: whether it is reached, keeps what it is given, lets us do what we must, and has our time; the fleet on it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError
from redis.retry import Retry

from credhook.ops import permissions
from credhook.ops.attention import of_memory
from credhook.ops.doctor_fleet import FLEET, of_fleet
from credhook.ops.facts import Server
from credhook.ops.finding import Finding, apart, fail, ok, skipped, warn
from credhook.ops.reading import read_facts
from credhook.ops.setup import Setup
from credhook.store.address import RedisAddress
from credhook.store.connection import open_redis_sync
from credhook.store.health import Check, unanswered

#: Seconds that Redis may take for one answer.
PATIENCE: Final = 5.0
#: Seconds by which clocks may differ without anybody noticing.
CLOSE: Final = 5.0

#: The rules that open them. Redis refuses a rule for what is open already, and with it the whole command.
_OPENS: Final = {"keys": "~credhook:* ~rq:*", "channels": "&credhook:* &rq:*"}

_SAFETY: Final = (
    *("redis.version", "redis.no_cluster", "redis.noeviction", "redis.master", "redis.append_only_file"),
    *("redis.fsync", "redis.memory", "redis.disk", "redis.maxmemory"),
)
NAMES: Final = ("redis.reached", *_SAFETY, "redis.permissions", "redis.clock", *FLEET)


def check_redis(setup: Setup) -> Iterator[Finding]:
    """All of them; where Redis is not reached, the others are skipped."""
    if setup.ledger.settings is None:
        yield from (skipped(name, "the settings do not say which Redis") for name in NAMES)
        return
    settings = setup.ledger.settings
    address = RedisAddress.parse(settings.redis_url.get_secret_value())
    with opened(address) as redis:
        try:
            with suppress(NoPermissionError):  # Which is named next, with all that is refused.
                redis.ping()
            yield of_permissions(*permissions.refused(redis))
            yield of_clock("redis.clock", "Redis", redis_ahead(redis, setup.now), setup.tolerance)
            facts = read_facts(redis, str(address), settings.queue)
            yield ok("redis.reached", f"{address} answers")
            yield from of_server(facts.server)
            yield from of_fleet(facts)
        except (RedisError, OSError) as error:
            what, remedy = apart(unanswered(error))
            yield fail("redis.reached", what, remedy)
            yield from (skipped(name, "Redis is not reached") for name in NAMES[1:])


def opened(address: RedisAddress) -> Redis:
    """A client that gives up soon."""
    return open_redis_sync(
        address, retry=Retry(NoBackoff(), 0), socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE, protocol=2
    )


def of_server(server: Server) -> Iterator[Finding]:
    """All that it says of itself: what would lose events, and a memory that is nearly full."""
    nearly_full = [warn("redis.memory", one.what, one.remedy) for one in of_memory(server)]
    for check in server.checks:
        yield from nearly_full if check.name == "memory" and nearly_full else [of_safety(check)]


def of_safety(check: Check) -> Finding:
    """One thing in a Redis that would lose events."""
    name = f"redis.{check.name}"
    if check.passed:
        return ok(name, "as it should be")
    what, remedy = apart(check.remedy)
    return warn(name, what, remedy) if check.warning else fail(name, what, remedy)


def of_permissions(commands: list[str], closed: list[str]) -> Finding:
    """What an access control list keeps from us."""
    if not commands and not closed:
        return ok("redis.permissions", "every command that we need is allowed")
    told = [f"REDIS_URL's user may not run {', '.join(commands)}"] if commands else []
    told += [f"{kind} of ours are closed to REDIS_URL's user" for kind in closed]
    rules = [*(f"+{command.lower()}" for command in commands), *(_OPENS[kind] for kind in closed)]
    return fail("redis.permissions", "; ".join(told), f"ACL SETUSER <user> {' '.join(rules)}")


def redis_ahead(redis: Redis, now: Callable[[], float]) -> float:
    """Seconds by which Redis's clock is ahead of this host's, give or take half a round trip."""
    before = now()
    seconds, microseconds = redis.time()
    return seconds + microseconds / 1_000_000 - (before + now()) / 2


def of_clock(name: str, whose: str, ahead: float, tolerance: int) -> Finding:
    """Whether two clocks agree."""
    told = f"{whose}'s clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    remedy = "let both follow an NTP server; signatures and retries go by them"
    if abs(ahead) > tolerance:
        return fail(name, f"{told}: deliveries are refused beyond {tolerance} s", remedy)
    if abs(ahead) > CLOSE:
        return warn(name, told, remedy)
    return ok(name, f"{whose}'s clock is this host's, within {CLOSE:.0f} s")
