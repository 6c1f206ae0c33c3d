"""Replay or erase many events: the operator confirms a count, then a job runs and has its own page.

A job stands in Redis for a day, and every console of the queue shows it. The console that holds a lock runs the jobs in
order. If it ends, another console continues its job.
"""

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, cast

import structlog
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from credhook.console.auth import operator, read_form
from credhook.console.events import in_words, query_of, selection
from credhook.console.pages import page
from credhook.store import State
from credhook.store.bulk import BATCH, batched, sentence
from credhook.store.erase import ERASED, NOT_ERASED, Erasure
from credhook.store.errors import STORE_ERRORS, StoreRefusal
from credhook.store.health import unanswered
from credhook.store.replay import NOT_REPLAYED, REPLAYED, How, Replay, Settled
from credhook.store.selection import Cursor, EventSummary, Selection, UnknownCause, fingerprint, read_page
from credhook.store.store import SyncStore

log = structlog.get_logger("credhook.console")

#: Finished jobs that are kept.
_MAX_FINISHED: Final = 50
#: For how long a job is kept after its request, and is continued.
_KEPT: Final = timedelta(days=1)
#: Seconds between two looks for jobs.
_ROUND_SECONDS: Final = 1.0
#: Ms that the lock lasts: three rounds.
_LOCK_MS: Final = 3_000
#: Outcome of the events of a batch that was worked on while its console ended.
_INTERRUPTED: Final = {"interrupted": "as a console ended"}
#: A place before all events.
_BEFORE_ALL: Final = Cursor(-1)
#: Stands for an id in the selection of an erasure that has ended.
_ERASED_ID: Final = "…"
#: Follows the id of a job in the name of the field that stops it.
_STOP: Final = ":stop"

#: Works on a batch of events, and returns the outcome of each.
Step = Callable[[Sequence[EventSummary]], Sequence[bytes]]


class EventsChanged(Exception):
    """The selection matches other events than when it was counted."""


class Interrupted(Exception):
    """This console may work on no further batch: it ends, or another console has the lock."""


class Stage(StrEnum):
    """The stages of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


def _replay(store: SyncStore, job: "Job") -> Step:
    put_back = Replay(store, by=f"{job.operator} (console)")
    mode: How = "now" if job.chosen.cause else ""
    return lambda batch: put_back([Settled(event.webhook_id, event.state) for event in batch], how=mode)


def _erase(store: SyncStore, job: "Job") -> Step:
    return Erasure(store, job.chosen, by=f"{job.operator} (console)")


class Verb(NamedTuple):
    """What a job does to events. `done`: outcomes that count as done, with a remark or "". `not_done`: the others."""

    past: str
    begin: Callable[[SyncStore, "Job"], Step]
    done: Mapping[str, str]
    not_done: Mapping[str, str]


VERBS: Final = {
    "replay": Verb("replayed", _replay, REPLAYED | _INTERRUPTED, NOT_REPLAYED),
    "erase": Verb("erased", _erase, ERASED | _INTERRUPTED, NOT_ERASED),
}


@dataclass(slots=True)
class Job:
    """One replay or erasure, as it stands in Redis.

    Attributes:
        verb: `replay` or `erase`.
        rest: the fingerprint of the events after `begun`, as they were counted for the operator.
        total: events found.
        begun: place of the last event of the batch that was begun last. The oldest events come first.
        finished: place of the last event that has an outcome.
        error: the class of the error that ended the job, or "".
    """

    verb: str
    chosen: Selection
    operator: str
    rest: int
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    requested: datetime = field(default_factory=lambda: datetime.now(UTC))
    stage: Stage = Stage.WAITING
    total: int = 0
    begun: Cursor = _BEFORE_ALL
    finished: Cursor = _BEFORE_ALL
    error: str = ""
    ended: datetime | None = None
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def worked(self) -> int:
        """Return how many events have an outcome so far."""
        return self.outcomes.total()

    @property
    def which(self) -> str:
        """Return the selection in words."""
        return in_words(self.chosen)

    @property
    def summary(self) -> str:
        """Return the outcomes in one line."""
        verb = VERBS[self.verb]
        return sentence(self.outcomes, verb.past, verb.done, verb.not_done)


_JOB: Final = TypeAdapter(Job)


def _jobs_in(fields: Mapping[str, bytes]) -> list[Job]:
    """Return the jobs of the last day, newest first, without those that another version has written differently."""
    oldest, jobs = datetime.now(UTC) - _KEPT, list[Job]()
    for name, text in fields.items():
        if not name.endswith(_STOP):
            with suppress(ValidationError):
                jobs.append(_JOB.validate_json(text))
    return sorted((job for job in jobs if job.requested > oldest), key=lambda job: job.requested, reverse=True)


class Jobs:
    """The jobs of a queue, in Redis. The console that has the lock runs them."""

    def __init__(self, store: SyncStore) -> None:
        self._store = store
        self._name = secrets.token_hex(8)
        self._ends, self._wakes = threading.Event(), threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._worker = ThreadPoolExecutor(max_workers=1)
        #: True once it is logged that Redis holds the jobs up.
        self._has_warned = False

    def start(self) -> None:
        """Run jobs until `close` is called."""
        self._watcher.start()

    def close(self) -> None:
        """Wait for the end of the running batch. Another console continues its job."""
        self._ends.set()
        self._wakes.set()
        self._watcher.join()
        self._worker.shutdown()

    def add(self, job: Job) -> None:
        """Let the job run after all earlier jobs. Forget the oldest that have ended."""
        fields = self._fields()
        jobs = _jobs_in(fields)
        kept = {job.id for job in [*(job for job in jobs if job.ended)][:_MAX_FINISHED]}
        kept |= {job.id for job in jobs if not job.ended}
        self._write(job, forgotten=[name for name in fields if name.removesuffix(_STOP) not in kept])
        log.info("console_" + job.verb, who=job.operator, events=job.which, job=job.id)
        self._wakes.set()

    def get(self, id_: str) -> Job:
        """Return the job, or raise a 404 if it is unknown or forgotten."""
        for job in self.all():
            if job.id == id_:
                return job
        raise HTTPException(404, "There is no such job. Jobs of earlier days are in the consoles' logs.")

    def all(self) -> list[Job]:
        """Return the kept jobs, newest first."""
        return _jobs_in(self._fields())

    def request_stop(self, job: Job) -> None:
        """Let the job stop before its next batch."""
        self._store.redis.hset(self._store.keys.console_jobs, job.id + _STOP, "1")

    def _fields(self) -> dict[str, bytes]:
        fields = cast(dict[bytes, bytes], self._store.redis.hgetall(self._store.keys.console_jobs))
        return {name.decode(): value for name, value in fields.items()}

    def _write(self, job: Job, *, forgotten: Sequence[str] = ()) -> None:
        key, pipeline = self._store.keys.console_jobs, self._store.redis.pipeline()
        pipeline.hset(key, job.id, _JOB.dump_json(job))
        pipeline.pexpire(key, _KEPT)
        if forgotten:
            pipeline.hdel(key, *forgotten)
        pipeline.execute()

    def _has_lock(self) -> bool:
        """Take or renew the lock, and return True if this console has it."""
        return bool(self._store.run("process_lock", ["console", self._name, _LOCK_MS]))

    def _watch(self) -> None:
        """Renew the lock while a job runs, and begin the next job when none does."""
        running = Future[None]()
        running.set_result(None)
        while not self._ends.is_set():
            try:
                waiting = [job for job in self.all() if not job.ended]
                self._has_warned = self._has_warned and bool(waiting)  # A job may fail while this look succeeds.
                if waiting and self._has_lock() and running.done():
                    running = self._worker.submit(self._run, waiting[-1])
            except STORE_ERRORS as error:
                self._warn(error)
            self._wakes.wait(_ROUND_SECONDS)
            self._wakes.clear()

    def _warn(self, error: Exception) -> None:
        """Log the first of several errors of Redis in a row."""
        if not self._has_warned:
            log.warning("console_jobs_wait", reason=unanswered(error))
        self._has_warned = True

    def _run(self, job: Job) -> None:
        """Work until the job is done, stopped or failed, or this console must leave it."""
        try:
            job.stage = self._work(job)
        except Interrupted:
            return
        except Exception as error:  # noqa: BLE001
            if isinstance(error, STORE_ERRORS) and not isinstance(error, StoreRefusal):
                self._warn(error)  # The next round continues the job.
                return
            # The messages of these errors name no event. Other messages may.
            is_shown = isinstance(error, UnknownCause | EventsChanged)
            job.error = str(error) if is_shown else type(error).__name__
            job.stage = Stage.FAILED
        job.ended = datetime.now(UTC)
        if job.verb == "erase":  # Redis keeps no id of what it has erased.
            ids, resource = job.chosen.ids and (_ERASED_ID,), job.chosen.resource and _ERASED_ID
            job.chosen = replace(job.chosen, ids=ids, resource=resource)
        try:
            self._write(job)
        except STORE_ERRORS as error:  # The job has not ended, as Redis has it. It is continued once Redis answers.
            self._warn(error)
            return
        self._has_warned = False
        done = sum(job.outcomes[name] for name in VERBS[job.verb].done)
        outcome: dict[str, Any] = {"ended": str(job.stage), "events": job.total, "done": done}
        if job.error:
            outcome["error"] = job.error
        log.info("console_job_ended", who=job.operator, job=job.id, verb=job.verb, **outcome)
        self._wakes.set()

    def _work(self, job: Job) -> Stage:
        """Work on the events that have no outcome yet, and return how the job ended."""
        store = self._store
        self._leave_if_told(job)
        if self._is_stopped(job):
            return Stage.STOPPED
        job.stage = Stage.RUNNING
        self._write(job)
        events = [event for event in read_page(store, job.chosen).events[::-1] if event.cursor > job.finished]
        is_first = job.begun == _BEFORE_ALL
        if fingerprint(event for event in events if event.cursor > job.begun) != job.rest or (
            not is_first and len(events) > job.total - job.worked
        ):
            raise EventsChanged("the events have changed since they were counted: count them again")
        if is_first:
            job.total = len(events)
        else:
            job.outcomes["interrupted"] += job.total - job.worked - len(events)
            log.info("console_job_continued", who=job.operator, job=job.id, worked=job.worked)
        step, job.rest = VERBS[job.verb].begin(store, job), fingerprint(events)
        for batch in batched(events, BATCH):
            self._leave_if_told(job)
            if self._is_stopped(job):
                return Stage.STOPPED
            job.begun, job.rest = batch[-1].cursor, job.rest ^ fingerprint(batch)
            self._write(job)
            job.outcomes += Counter(outcome.decode() for outcome in step(batch))
            job.finished = job.begun
        if isinstance(step, Erasure):
            late = Counter(outcome.decode() for outcome in step.finish(events))
            job.outcomes, job.total = job.outcomes + late, job.total + late.total()
        return Stage.DONE

    def _leave_if_told(self, job: Job) -> None:
        """Raise `Interrupted` if this console ends or another console has the lock. Renew the lock otherwise."""
        if not self._has_lock():
            raise Interrupted
        if self._ends.is_set():
            self._write(job)  # The outcome of its last batch.
            raise Interrupted

    def _is_stopped(self, job: Job) -> bool:
        """Return True if an operator has stopped the job."""
        return bool(self._store.redis.hexists(self._store.keys.console_jobs, job.id + _STOP))


def routes(store: SyncStore, jobs: Jobs) -> list[Route]:
    """Return the routes of replay, erase and jobs."""

    def ask(request: Request, verb: str) -> Response:
        return confirm(request, verb, _chosen(request.query_params.multi_items()))

    def confirm(request: Request, verb: str, chosen: Selection, problem: str = "") -> Response:
        # Events that come after the count are not touched.
        fixed = replace(chosen, until=chosen.until or datetime.now(UTC)) if not chosen.ids else chosen
        events = read_page(store, fixed).events
        counts = Counter((event.state, event.type) for event in events)
        context = {
            "verb": verb,
            "rows": sorted(counts.items()),
            "total": counts.total(),
            "again": sum(number for (state, _), number in counts.items() if state == State.DONE),
            "which": in_words(chosen),
            "address": query_of(fixed),
            "back": query_of(chosen),
            "problem": problem,
            "counted": fingerprint(events),
        }
        return page(request, "confirm.html", 400 if problem else 200, title=verb.capitalize(), **context)

    async def act(request: Request, verb: str) -> Response:
        form = await read_form(request)
        chosen = _chosen(form.multi_items())
        if verb == "erase" and form.get("typed", "").replace(" ", "") != form.get("total"):
            problem = "Type the number of events exactly as it is shown."
            return await run_in_threadpool(confirm, request, verb, chosen, problem)
        counted = form.get("counted", "")
        if not counted.isdecimal():
            raise HTTPException(400, "Count the events first.")
        job = Job(verb, chosen, operator(request), int(counted))
        await run_in_threadpool(jobs.add, job)
        return RedirectResponse(f"/jobs/{job.id}", 303)

    def show_all(request: Request) -> Response:
        return page(request, "jobs.html", title="Jobs", jobs=jobs.all())

    def show(request: Request) -> Response:
        job = jobs.get(request.path_params["id"])
        return page(request, "job.html", title=f"{job.verb.capitalize()} {job.id}", job=job)

    async def stop(request: Request) -> Response:
        await read_form(request)
        job = await run_in_threadpool(jobs.get, request.path_params["id"])
        log.info("console_job_stopped", who=operator(request), job=job.id)
        await run_in_threadpool(jobs.request_stop, job)
        return RedirectResponse(f"/jobs/{job.id}", 303)

    return [
        *(Route(f"/{verb}", partial(ask, verb=verb)) for verb in VERBS),
        *(Route(f"/{verb}", partial(act, verb=verb), methods=["POST"]) for verb in VERBS),
        Route("/jobs", show_all),
        Route("/jobs/{id}", show),
        Route("/jobs/{id}/stop", stop, methods=["POST"]),
    ]


def _chosen(query: Sequence[tuple[str, str]]) -> Selection:
    """Return the selection to work on, or raise a 400. Refuse an empty selection, which would mean every event."""
    try:
        chosen = selection(query, datetime.now(UTC))
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    if chosen.is_empty:
        raise HTTPException(400, "Select events first: set a filter on the events page.")
    return replace(chosen, after=None)
