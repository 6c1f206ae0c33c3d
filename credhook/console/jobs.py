"""Replay and erase of many events: count first, then a job in a thread, followed on a page of its own.

A job continues when the browser leaves, and ends with the console.
"""

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from queue import SimpleQueue
from typing import Final

import click
import structlog
from redis import Redis
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from credhook.console import auth
from credhook.console.auth import read_form, session_of
from credhook.console.events import address, in_words, selection
from credhook.console.live import Streams
from credhook.console.overview import FleetWatch
from credhook.console.rendering import fragment, page
from credhook.store import Keys, State
from credhook.store.store import Store
from credhook.worker.commands.batches import BATCH, batched, sentence
from credhook.worker.commands.bulk import ERASED, NOT_ERASED, NOT_REPLAYED, REPLAYED, Erasure
from credhook.worker.commands.search import EventSummary, Selection, read_page
from credhook.worker.queue.replay import How, Replay, Settled

log = structlog.get_logger("credhook.console")

#: Finished jobs that are kept, and jobs that may wait.
_MAX_FINISHED: Final = 50
_MAX_WAITING: Final = 20
#: Seconds that the running batch gets when the console stops.
_STOP_SECONDS: Final = 5.0


class Stage(StrEnum):
    """The stages of a job."""

    WAITING = "waiting"
    READING = "reading"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Task:
    """A replay or an erasure of events.

    Attributes:
        verb: `replay` or `erase`.
        past: the verb in the past tense.
        find: returns the events, in the order of the work.
        step: works on one batch, and returns an outcome per event.
        done: outcomes that count as done, each with a remark or "".
        left: the other outcomes, each with the reason.
        finish: called with all events after the last batch.
    """

    verb: str
    past: str
    find: Callable[[Redis, Keys], Sequence[EventSummary]]
    step: Callable[[Sequence[EventSummary]], Sequence[bytes]]
    done: Mapping[str, str]
    left: Mapping[str, str]
    finish: Callable[[Sequence[EventSummary]], None] = lambda _: None


def replay_task(redis: Redis, keys: Keys, chosen: Selection, who: str) -> Task:
    """Return the task that replays the chosen events, oldest first."""
    how = How.NOW if chosen.cause else How.ANEW
    put_back = Replay(Store(redis, keys.queue, retention=0), by=f"{who} (console)")

    def step(batch: Sequence[EventSummary]) -> Sequence[bytes]:
        return put_back([Settled(event.webhook_id, event.state) for event in batch], how=how)

    return Task("replay", "replayed", _oldest_first(chosen), step, REPLAYED, NOT_REPLAYED)


def erase_task(redis: Redis, keys: Keys, chosen: Selection, _: str) -> Task:
    """Return the task that erases the chosen events, oldest first."""
    erasure = Erasure(redis, keys, chosen)
    return Task("erase", "erased", _oldest_first(chosen), erasure, ERASED, NOT_ERASED, erasure.finish)


def _oldest_first(chosen: Selection) -> Callable[[Redis, Keys], Sequence[EventSummary]]:
    return lambda redis, keys: read_page(redis, keys, chosen).events[::-1]


TASKS: Final[Mapping[str, Callable[[Redis, Keys, Selection, str], Task]]] = {
    "replay": replay_task,
    "erase": erase_task,
}


@dataclass(slots=True)
class ConsoleJob:
    """One task in progress. A thread works on it while pages read it, so attributes are replaced, never half set.

    Attributes:
        which: the selection in words.
        total: events found.
        worked: events worked on so far.
        error: the class of the error that ended the job, or "".
    """

    id: str
    task: Task
    who: str
    which: str
    asked: datetime
    stage: Stage = Stage.WAITING
    total: int = 0
    worked: int = 0
    error: str = ""
    ended: datetime | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """End the job between two batches."""
        self._stopped.set()

    def run(self, redis: Redis, keys: Keys, clock: Callable[[], datetime]) -> None:
        """Work until the job is done, stopped or failed. Raises nothing, since other jobs wait behind it."""
        try:
            self.stage = self._work(redis, keys)
        except click.ClickException as error:  # Such as a cause that was forgotten meanwhile.
            self.error, self.stage = error.message, Stage.FAILED
        except Exception as error:  # noqa: BLE001
            self.error, self.stage = type(error).__name__, Stage.FAILED
        finally:
            self.ended = clock()

    def _work(self, redis: Redis, keys: Keys) -> Stage:
        if self._stopped.is_set():
            return Stage.STOPPED
        self.stage = Stage.READING
        events = self.task.find(redis, keys)
        self.total, self.stage = len(events), Stage.RUNNING
        for batch in batched(events, BATCH):
            if self._stopped.is_set():
                return Stage.STOPPED
            self.outcomes = self.outcomes + Counter(outcome.decode() for outcome in self.task.step(batch))
            self.worked += len(batch)
        self.task.finish(events)
        return Stage.DONE

    @property
    def is_over(self) -> bool:
        """Return True if the job has ended."""
        return self.stage in {Stage.DONE, Stage.STOPPED, Stage.FAILED}

    @property
    def finished(self) -> int:
        """Return how many events the task was done to."""
        return sum(self.outcomes[name] for name in self.task.done)

    @property
    def summary(self) -> str:
        """Return the outcomes in one line."""
        return sentence(self.outcomes, self.task.past, self.task.done, self.task.left)


class TooMany(Exception):
    """Too many jobs wait already."""


class Jobs:
    """The jobs of this console. One thread runs them one after the other."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        new_id: Callable[[], str] = lambda: secrets.token_hex(6),
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._clock = clock
        self._new_id = new_id
        self._jobs: dict[str, ConsoleJob] = {}
        self._waiting: SimpleQueue[ConsoleJob | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def add(self, task: Task, *, who: str, which: str) -> ConsoleJob:
        """Queue a task for the operator `who`; `which` is the selection in words.

        Raises:
            TooMany: too many jobs wait already.
        """
        if sum(not job.is_over for job in self._jobs.values()) >= _MAX_WAITING:
            raise TooMany
        job = ConsoleJob(self._new_id(), task, who, which, self._clock())
        over = [id_ for id_, one in self._jobs.items() if one.is_over]
        for id_ in over[: max(0, len(over) - _MAX_FINISHED + 1)]:
            del self._jobs[id_]
        self._jobs[job.id] = job
        log.info("console_" + task.verb, who=who, events=which, job=job.id)
        self._waiting.put(job)
        return job

    def get(self, id_: str) -> ConsoleJob | None:
        """Return the job, or None if it is unknown or forgotten."""
        return self._jobs.get(id_)

    def all(self) -> list[ConsoleJob]:
        """Return the kept jobs, newest first."""
        return list(self._jobs.values())[::-1]

    def stop(self) -> None:
        """Stop all jobs between two batches, and wait for the running batch."""
        for job in self.all():
            job.stop()
        self._waiting.put(None)
        self._thread.join(_STOP_SECONDS)

    def _work(self) -> None:
        while job := self._waiting.get():
            job.run(self._redis, self._keys, self._clock)
            log.info(
                "console_job_ended",
                who=job.who,
                job=job.id,
                verb=job.task.verb,
                ended=str(job.stage),
                events=job.total,
                done=job.finished,
                **({"error": job.error} if job.error else {}),
            )


def routes(fleet: FleetWatch, jobs: Jobs, streams: Streams) -> list[Route]:
    """Return the routes of replay, erase and jobs."""
    return [*(route for verb in TASKS for route in _task_routes(verb, fleet, jobs)), *_job_routes(jobs, streams)]


def _task_routes(verb: str, fleet: FleetWatch, jobs: Jobs) -> list[Route]:
    async def show(request: Request) -> Response:
        now = datetime.now(UTC)
        return await confirm(request, _chosen(request.query_params.multi_items(), now), now)

    async def confirm(request: Request, chosen: Selection, now: datetime, problem: str = "") -> Response:
        # Events that come after the count are not touched.
        fixed = replace(chosen, until=chosen.until or now) if not chosen.ids else chosen
        events = await fleet.ask(lambda redis, keys: read_page(redis, keys, fixed).events)
        counts = Counter((event.state, event.type) for event in events)
        rows = sorted(counts.items())
        context = {
            "verb": verb,
            "rows": rows,
            "total": sum(number for _, number in rows),
            "again": sum(number for (state, _), number in rows if state == State.DONE),
            "which": in_words(chosen),
            "address": address(fixed),
            "back": address(chosen),
            "problem": problem,
        }
        return page(request, "confirm.html", 400 if problem else 200, title=verb.capitalize(), **context)

    async def act(request: Request) -> Response:
        form, now = await read_form(request), datetime.now(UTC)
        chosen = _chosen([pair for pair in form if pair[0] not in {"counted", "typed"}], now)
        if verb == "erase" and auth.field(form, "typed").replace(" ", "") != auth.field(form, "counted"):
            return await confirm(request, chosen, now, "Type the number of events exactly as it is shown.")
        who = session_of(request).who
        try:
            job = jobs.add(TASKS[verb](fleet.redis, fleet.keys, chosen, who), who=who, which=in_words(chosen))
        except TooMany:
            raise HTTPException(503, "Too many jobs wait. Stop one, or wait until some are done.") from None
        return RedirectResponse(f"/jobs/{job.id}", 303)

    return [Route(f"/{verb}", show), Route(f"/{verb}", act, methods=["POST"])]


def _chosen(query: Sequence[tuple[str, str]], now: datetime) -> Selection:
    """Return the selection to work on. Refuse an empty selection: it would mean every event.

    Raises:
        HTTPException: 400, the query is empty or invalid.
    """
    try:
        chosen = selection(query, now)
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    if chosen.is_empty:
        raise HTTPException(400, "Select events first: set a filter on the events page.")
    return replace(chosen, after=None)


def _job_routes(jobs: Jobs, streams: Streams) -> list[Route]:
    def wanted(request: Request) -> ConsoleJob:
        job = jobs.get(request.path_params["id"])
        if job is None:
            raise HTTPException(404, "There is no such job. Jobs of an earlier console are in its log.")
        return job

    async def show_all(request: Request) -> Response:
        return page(request, "jobs.html", title="Jobs", jobs=jobs.all())

    async def show(request: Request) -> Response:
        job = wanted(request)
        return page(request, "job.html", title=f"{job.task.verb.capitalize()} {job.id}", job=job)

    async def live(request: Request) -> Response:
        job = wanted(request)
        form_token = session_of(request).form_token

        async def part() -> tuple[str, bool]:
            changes = not job.is_over
            return fragment("job_part.html", job=job, form_token=form_token), changes

        return streams.stream(request, part)

    async def stop(request: Request) -> Response:
        await read_form(request)
        job = wanted(request)
        log.info("console_job_stopped", who=session_of(request).who, job=job.id)
        job.stop()
        return RedirectResponse(f"/jobs/{job.id}", 303)

    return [
        Route("/jobs", show_all),
        Route("/jobs/{id}", show),
        Route("/jobs/{id}/stop", stop, methods=["POST"]),
        Route("/live/jobs/{id}", live),
    ]
