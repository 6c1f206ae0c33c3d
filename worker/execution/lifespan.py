"""The start-up and shutdown functions of plugins: once in each process that runs handlers."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import structlog

from credhook.backoff import Backoff, Waits
from credhook.worker.handlers.registry import Handlers

log = structlog.get_logger("credhook.worker")

#: Waits between two tries to start a plugin.
_BACKOFF: Final = Backoff(first=1.0, longest=60.0)
#: Seconds that one shutdown function may take.
_SHUTDOWN: Final = 5.0


class Lifespan:
    """What plugins keep for as long as a process runs.

    Attributes:
        states: plugin's name → what its start-up returned.
    """

    def __init__(
        self, plugins: Iterable[Handlers[Any]], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """`sleep` waits so many seconds between two tries."""
        self.states: dict[str, Any] = {}
        self._plugins = tuple(plugins)
        self._sleep = sleep

    async def start(self) -> None:
        """Return once every plugin has started; one that fails is tried again, and keeps the events waiting."""
        for plugin in self._plugins:
            startup, _ = plugin.hooks
            waits = Waits(_BACKOFF)
            while startup is not None and plugin.name not in self.states:
                try:
                    self.states[plugin.name] = await _called(startup)
                except (Exception, SystemExit) as error:
                    wait = waits.next()
                    hint = "no event is taken until it succeeds"
                    log.error("startup_failed", plugin=plugin.name, exc_info=error, retry_in=wait, hint=hint)  # noqa: TRY400  Our processor keeps the message out.
                    await self._sleep(wait)

    async def stop(self) -> None:
        """Shut down what has started, the last first."""
        for plugin in reversed(self._plugins):
            started, (startup, shutdown) = plugin.name in self.states, plugin.hooks
            if shutdown is None or not (started or startup is None):
                continue
            try:
                async with asyncio.timeout(_SHUTDOWN):
                    await _called(shutdown, self.states.pop(plugin.name, None))
            except (Exception, SystemExit) as error:
                log.error("shutdown_failed", plugin=plugin.name, exc_info=error)  # noqa: TRY400  As above.


async def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns: on the loop if it is an `async def`, else in a thread, which it may block."""
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return await function(*arguments)
    result = await asyncio.to_thread(function, *arguments)
    return await result if isinstance(result, Awaitable) else result
