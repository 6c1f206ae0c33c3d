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
#: Seconds after which a start-up that has not ended is named, again and again.
_SLOW: Final = 30.0
#: Seconds that one shutdown function may take.
_SHUTDOWN: Final = 5.0


class Lifespan:
    """What plugins keep for as long as a process runs; `states`: plugin's name → what its start-up returned."""

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
                    self.states[plugin.name] = await self._watched(plugin.name, startup)
                except (Exception, SystemExit, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                        raise
                    wait = waits.next()
                    hint = "no event is taken until it succeeds"
                    log.error("startup_failed", plugin=plugin.name, exc_info=error, retry_in=wait, hint=hint)  # noqa: TRY400  Our processor keeps the message out.
                    await self._sleep(wait)
        if self.states:
            log.info("plugins_started", plugins=list(self.states))

    async def stop(self) -> None:
        """Shut down what has started, the last first."""
        for plugin in reversed(self._plugins):
            started, (startup, shutdown) = plugin.name in self.states, plugin.hooks
            if shutdown is None or not (started or startup is None):
                continue
            ending = asyncio.ensure_future(_settled(_called(shutdown, self.states.pop(plugin.name, None))))
            await asyncio.wait({ending}, timeout=_SHUTDOWN)
            error = ending.result() if ending.done() else TimeoutError()
            if error is not None:
                ending.cancel()  # What goes on all the same ends with the process.
                log.error("shutdown_failed", plugin=plugin.name, exc_info=error)

    @staticmethod
    async def _watched(plugin: str, startup: Callable[[], Any]) -> Any:
        """What the start-up returns. One that takes long is named: until it ends, no event is taken."""
        watching = asyncio.ensure_future(_remarking(plugin))
        try:
            return await _called(startup)
        finally:
            watching.cancel()


async def _remarking(plugin: str) -> None:
    while True:
        await asyncio.sleep(_SLOW)
        log.warning("startup_slow", plugin=plugin, hint="no event is taken until it ends; give its calls time-outs")


def _is_cancelled() -> bool:
    """Whether it is us that somebody has cancelled, rather than something that was awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _settled(awaited: Awaitable[Any]) -> BaseException | None:
    """What went wrong, or None."""
    try:
        await awaited
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001  Other people's code.
        return error
    return None


async def _called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns: on the loop if it is an `async def`, else in a thread, which it may block."""
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return await function(*arguments)
    result = await asyncio.to_thread(function, *arguments)
    return await result if isinstance(result, Awaitable) else result
