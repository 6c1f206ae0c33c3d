"""Build the parts of a worker on one event loop, and run the start-up and shutdown functions of its plugins."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from credhook import tracing
from credhook.background import beside
from credhook.backoff import Backoff, Waits
from credhook.logs.places import authors_frames, without_ours
from credhook.settings import WorkerSettings
from credhook.store.store import AsyncStore
from credhook.worker.api.client import Api, AsyncApi, Sender, transport_from
from credhook.worker.api.http.exchange import Transport
from credhook.worker.api.token import ClientCredentials
from credhook.worker.attempt.details import Snapshots
from credhook.worker.attempt.processor import Clients, Processor
from credhook.worker.attempt.rehearsal import RehearsedClaims, RehearsedSnapshots
from credhook.worker.attempt.running import call, where_task_is
from credhook.worker.handlers.functions import defined_at
from credhook.worker.handlers.registry import Handlers, Registry
from credhook.worker.platform.circuit_breaker import CircuitBreaker
from credhook.worker.queue.claims import Claims

log = structlog.get_logger("credhook.worker")

#: Waits between two tries of a start-up function.
_BACKOFF: Final = Backoff(first=1.0, longest=60.0)


@dataclass
class Lifespan:
    """Runs the start-up and shutdown functions of plugins, once in each process.

    Attributes:
        slow_seconds: after this time, a start-up function that has not returned is logged again, repeatedly.
        patience_seconds: a plugin whose start takes longer is logged, and the other plugins go on without it.
        shutdown_seconds: a shutdown function may take so long.
        states: plugin → the result of its start-up function.
    """

    plugins: Sequence[Handlers[Any]]
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    slow_seconds: float = 30.0
    patience_seconds: float = 5.0
    shutdown_seconds: float = 5.0
    states: dict[str, Any] = field(default_factory=dict)
    _starting: list["asyncio.Task[None]"] = field(default_factory=list)

    @property
    def has_started(self) -> bool:
        """Return True once every start-up function has succeeded."""
        return all(plugin.name in self.states for plugin in self.plugins if plugin.startup_function)

    async def start(self) -> None:
        """Start the plugins. A start-up function that fails is tried again, while its handlers wait.

        Return once all plugins have started, or after `patience_seconds` if some have. The others go on starting.
        """
        groups: dict[Any, list[Handlers[Any]]] = {}
        for plugin in self.plugins:  # Plugins may share a start-up function, and then its result.
            groups.setdefault(plugin.startup_function or plugin, []).append(plugin)
        self._starting = [asyncio.create_task(self._start(group)) for group in groups.values()]
        if self._starting:
            await asyncio.wait(self._starting, timeout=self.patience_seconds)
            await asyncio.wait(self._starting, return_when=asyncio.FIRST_COMPLETED)
        if self.states:
            log.info("plugins_started", plugins=list(self.states))
        for group, task in zip(groups.values(), self._starting, strict=True):
            if not task.done():
                task.add_done_callback(partial(self._log_late_start, [plugin.name for plugin in group]))

    def _log_late_start(self, plugins: list[str], task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            log.info("plugins_started", plugins=plugins)

    async def _start(self, group: Sequence[Handlers[Any]]) -> None:
        plugin, *_ = group
        startup, waits = plugin.startup_function, Waits(_BACKOFF)
        while startup is not None and plugin.name not in self.states:
            watch = asyncio.create_task(self._log_slow_startup(plugin, asyncio.current_task()))
            try:
                try:
                    state = await call(startup)
                finally:
                    watch.cancel()
                self.states.update(dict.fromkeys([member.name for member in group], state))
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise
                wait, hint = waits.next(), "Its handlers wait until it succeeds"
                log.error("startup_failed", plugin=plugin.name, **_shown(error, startup), retry_in=wait, hint=hint)  # noqa: TRY400  Our processor drops the message.
                await self.sleep(wait)

    async def stop(self) -> None:
        """Shut the started plugins down, in reverse order."""
        for task in self._starting:
            task.cancel()
        ended: list[tuple[object, object]] = []
        for plugin in reversed(self.plugins):
            startup, shutdown = plugin.startup_function, plugin.shutdown_function
            if shutdown is None or (startup is not None and plugin.name not in self.states):
                continue
            state = self.states.pop(plugin.name, None)
            if startup is not None and any(shutdown == other and state is value for other, value in ended):
                continue  # Plugins share it.
            ended.append((shutdown, state))
            task = asyncio.create_task(call(shutdown, state))
            done, _ = await asyncio.wait({task}, timeout=self.shutdown_seconds)
            task.cancel()  # A task that ignores this ends with the process.
            error = TimeoutError() if not done else None if task.cancelled() else task.exception()
            if error is not None:
                log.error("shutdown_failed", plugin=plugin.name, **_shown(error, shutdown))

    async def _log_slow_startup(self, plugin: Handlers[Any], task: "asyncio.Task[None] | None") -> None:
        """Log the place of a start-up function that runs for long, or where it begins if it runs in a thread."""
        hint, wait = "Its handlers wait until it ends. Give its calls time-outs", self.patience_seconds
        while True:
            await asyncio.sleep(wait)
            at = authors_frames(TimeoutError().with_traceback(where_task_is(task)))[-1:]
            log.warning("startup_slow", plugin=plugin.name, at=at or [defined_at(plugin.startup_function)], hint=hint)
            wait = self.slow_seconds


def _shown(error: BaseException, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the fields of a log line about a failed function. They name its place, and no lines of ours."""
    return {"exc_info": error.with_traceback(without_ours(error.__traceback__)), "at": [defined_at(function)]}


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a worker on one event loop.

    The caller starts `lifespan`; it is stopped at the end. `transport` sends the requests for tokens that no event has
    caused, so they are in no trace.
    """

    store: AsyncStore
    lifespan: Lifespan
    processor: Processor
    auth: ClientCredentials
    transport: Transport


@asynccontextmanager
async def build_worker(
    settings: WorkerSettings,
    registry: Registry,
    *,
    worker: str = "",
    rehearse: bool = False,
) -> AsyncIterator[Parts]:
    """Build the parts on the running loop, renew leases, and close the parts at the end.

    `worker`: the name of the process that takes events; "" if RQ runs the jobs. `rehearse`: write nothing about events.
    """
    store = settings.open_store()
    claims = RehearsedClaims() if rehearse else Claims(store, lease=settings.lease, worker=worker)
    snapshots = (RehearsedSnapshots if rehearse else Snapshots)(store, settings.snapshot_key)
    breaker = CircuitBreaker.from_settings(store, settings)
    auth = ClientCredentials.from_settings(settings)
    auth.on_fetch = breaker.token_fetched
    untraced = transport_from(settings)
    transport: Transport = untraced
    attempt_tracer = None
    if (tracer := tracing.tracer()) is not None:
        from credhook.worker.tracing import AttemptTracer, TracedTransport  # OpenTelemetry is an optional dependency.

        attempt_tracer = AttemptTracer(tracer, queue=settings.queue)
        transport = TracedTransport(tracer, transport)
    sender = Sender.from_settings(settings, auth=auth, transport=transport, guard=breaker.acquire)
    lifespan = Lifespan(registry.plugins)
    processor = Processor(
        settings,
        claims,
        registry,
        breaker,
        clients=Clients(AsyncApi(sender), Api(sender, asyncio.get_running_loop())),
        snapshots=snapshots,
        states=lifespan.states,
        tracer=attempt_tracer,
    )
    try:
        async with beside(processor.leases.keep):
            yield Parts(store, lifespan, processor, auth, untraced)
    finally:
        await lifespan.stop()
        await auth.aclose()
        await transport.aclose()
        await breaker.aclose()
        await store.redis.aclose()
