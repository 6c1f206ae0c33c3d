"""The real store, whose scripts run on a clock of the model and may be cut, and whose replies may be lost."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from model.oracle import RETENTION_MS
from redis import Redis
from redis.exceptions import ConnectionError as ConnectionBroken

from credhook.store import lua
from credhook.store.store import Script, Store

#: Stands before a script, whose last two arguments it takes away: the model's time in ms, and how many writes Redis
#: keeps, or -1 for all. After the last of them every command fails, as if Redis had lost its power.
_PRELUDE: Final = """
local real, left = redis, tonumber(table.remove(ARGV))
local now = tonumber(table.remove(ARGV))
local reads = {EXISTS = 1, GET = 1, HGET = 1, HGETALL = 1, HLEN = 1, HMGET = 1, MGET = 1, PUBLISH = 1, PUBSUB = 1,
               SMEMBERS = 1, SCARD = 1, TTL = 1, PTTL = 1, TYPE = 1, XRANGE = 1, XREVRANGE = 1, ZCARD = 1, ZRANGE = 1,
               ZRANGEBYSCORE = 1, ZSCORE = 1}
local function run(how, name, ...)
    if name == 'TIME' then
        return {string.format('%d', math.floor(now / 1000)), string.format('%d', now % 1000 * 1000)}
    end
    if not reads[name] then
        if left == 0 then return {err = 'ERR the power was cut'} end
        left = left - 1
    end
    local given = {...}
    if name == 'PEXPIREAT' then
        return how('PEXPIRE', given[1], string.format('%.0f', math.max(1, given[2] - now)))
    elseif name == 'XADD' then
        local last = real.call('GET', 'model:entry:' .. given[1]) or '0-0'
        local ms, number = string.match(last, '^(%d+)%-(%d+)$')
        ms, number = tonumber(ms), tonumber(number)
        given[2] = string.format('%.0f-%d', math.max(ms, now), now > ms and 0 or number + 1)
        real.call('SET', 'model:entry:' .. given[1], given[2])
    end
    return how(name, unpack(given))
end
local redis = {
    call = function(...)
        local reply = run(real.call, ...)
        if type(reply) == 'table' and reply.err then error(reply.err, 0) end
        return reply
    end,
    pcall = function(...) return run(real.pcall, ...) end,
    sha1hex = real.sha1hex, error_reply = real.error_reply,
}
"""


#: Lets so many ms pass for all keys that expire.
_AGE: Final = """
for _, key in ipairs(redis.call('KEYS', '*')) do
    local left = redis.call('PTTL', key)
    if left >= 0 then redis.call('PEXPIRE', key, string.format('%.0f', left - ARGV[1])) end
end
"""


class Died(Exception):
    """The process that has run a script has died."""


class Fate(NamedTuple):
    """What becomes of the next run of a script.

    Attributes:
        writes: how many of its writes Redis keeps; -1 for all.
        is_lost: True if its reply does not arrive.
        is_last: True if its process dies with it, and does not run it again.
    """

    writes: int = -1
    is_lost: bool = False
    is_last: bool = False


WELL: Final = Fate()


class Clock:
    """The clock of the model, in ms. Hosts see the time that has passed; Redis's clock may step."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.now = 1_800_000_000_000
        self.passed = 0

    def seconds(self) -> float:
        """Return the seconds of a clock that never steps."""
        return self.passed / 1_000

    def advance(self, milliseconds: int) -> None:
        """Let time pass, for all keys that expire as well."""
        self.passed += milliseconds
        self.step(milliseconds)

    def step(self, milliseconds: int) -> None:
        """Let Redis's clock alone go on, or back."""
        self.now += milliseconds
        self._redis.eval(_AGE, 0, milliseconds)


class ScriptedStore(Store[Redis]):
    """The store of one queue, over a synchronous client: nothing else goes on meanwhile."""

    def __init__(self, redis: Redis, clock: Clock, queue: str = "model", *, is_async: bool = False) -> None:
        super().__init__(redis, queue, retention=RETENTION_MS // 1_000)
        self._clock, self._is_async = clock, is_async
        #: What becomes of the next run of a script; later runs go well.
        self.fates: dict[Script, Fate] = {}

    def for_async_code(self) -> Any:
        """Return this store, with the same fates, for code that awaits its replies."""
        store = ScriptedStore(self.redis, self._clock, self.queue, is_async=True)
        store.fates = self.fates
        return store

    def clock(self) -> int:
        """Return the model's time in ms."""
        return self._clock.now

    def run(self, script: Script, arguments: Sequence[Any], *, keys: Sequence[str] = ()) -> Any:
        looks = script == "reclaim" and "look" in arguments  # This run writes nothing, so that nothing can be cut.
        fate = WELL if looks else self.fates.pop(script, WELL)
        registered = self.redis.register_script(_PRELUDE + lua.load(script))

        def run() -> Any:
            error: Exception | None = None
            reply: Any = None
            try:
                reply = registered(keys or [self.keys.prefix], [*arguments, self._clock.now, fate.writes])
            except Exception as failure:  # noqa: BLE001  A cut script fails in its own way.
                error = failure
            if fate.is_lost:
                raise Died if fate.is_last else ConnectionBroken("the reply is lost")
            if error:
                raise error
            return reply

        async def later() -> Any:
            return run()

        return later() if self._is_async else run()
