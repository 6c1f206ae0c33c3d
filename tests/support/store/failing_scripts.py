"""Scripts that break off at any of their commands: Redis runs all before it, keeps what they wrote, and refuses one.

The commands are found by running the script, so that a new one is tried by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from credhook.store import lua
from credhook.store.store import Script, Store

#: Stands before a script, whose last three arguments it takes away: with 0 it notes the script's commands, with
#: another number it refuses the command of that number, and all later ones if that is where the power was cut. Its text
#: never changes: Redis compiles it once.
_PRELUDE = """
local is_cut, refusal, refused = table.remove(ARGV) == '1', table.remove(ARGV), tonumber(table.remove(ARGV))
local real, count = redis, 0
local function numbered(run, refuse)
    return function(name, key, ...)
        count = count + 1
        if refused == 0 then real.call('RPUSH', 'test:commands', name) end
        if count == refused or is_cut and count > refused then return refuse() end
        if key then return run(name, key, ...) end
        return run(name)
    end
end
local redis = {
    call = numbered(real.call, function() error(refusal, 0) end),
    pcall = numbered(real.pcall, function() return {err = refusal} end),
    sha1hex = real.sha1hex,
}
"""

FORBIDDEN = "NOPERM this user has no permissions to run that command"
POWER_CUT = "ERR the power was cut"
OF_ANOTHER_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


@dataclass
class Sabotage:
    """A plan for the next run of a script.

    Attributes:
        number: which of its commands is refused; 0 to note its commands, -1 for neither.
        error: how; after `POWER_CUT` every later command is refused as well, and the reply is lost.
    """

    number: int = -1
    error: str = FORBIDDEN


class FailingStore(Store[Redis]):
    """A store whose scripts may break off, over a synchronous client: nothing else is going on meanwhile."""

    def __init__(self, redis: Redis, plans: dict[Script, Sabotage] | None = None, *, is_async: bool = False) -> None:
        super().__init__(redis, "credhook", retention=3_600)
        self.plans = {} if plans is None else plans
        self._is_async = is_async

    def for_async_code(self) -> Any:
        """Return this store, with the same plans, for code that awaits its replies."""
        return FailingStore(self.redis, self.plans, is_async=True)

    def run(self, script: Script, arguments: Sequence[Any], *, keys: Sequence[str] = ()) -> Any:
        plan = self.plans.pop(script, Sabotage())
        registered = self.redis.register_script(_PRELUDE + lua.load(script))

        def run() -> Any:
            is_cut = plan.error == POWER_CUT
            reply = registered(keys or [self.keys.prefix], [*arguments, plan.number, plan.error, int(is_cut)])
            if is_cut:  # No reply arrives, whatever the script makes of it.
                raise ResponseError(POWER_CUT)
            return reply

        async def later() -> Any:
            return run()

        return later() if self._is_async else run()
