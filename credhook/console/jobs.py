"""Replay and erase of many events: count first, then a job in a thread, followed on a page of its own.

A job continues when the browser leaves, and ends with the console.
"""

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

import structlog
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
from credhook.store.replay import NOT_REPLAYED, REPLAYED, How, Replay, Settled
from credhook.store.selection import EventSummary, Selection, UnknownCause, fingerprint, read_page
from credhook.store.store import SyncStore

log = structlog.get_logger("credhook.console")

#: Finished jobs that are kept.
_MAX_FINISHED: Final = 50

#: Works on a batch of events, and returns the outcome of each.
Step = Callable[[Sequence[EventSummary]], Sequence[bytes]]


class EventsChanged(Exception):
    """The selection matches other events than when it was counted."""


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
    "replay": Verb("replayed", _replay, REPLAYED, NOT_REPLAYED),
    "erase": Verb("erased", _erase, ERASED, NOT_ERASED),
}


@dataclass(slots=True)
class Job:
    """One replay or erasure. A thread works on it while pages read it, so attributes are replaced as a whole.

    Attributes:
        verb: `replay` or `erase`.
        counted: the fingerprint of the events that the operator was shown.
        total: events found.
        error: the class of the error that ended the job, or "".
    """

    verb: str
    chosen: Selection
    operator: str
    counted: str = ""
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    requested: datetime = field(default_factory=lambda: datetime.now(UTC))
    stage: Stage = Stage.WAITING
    total: int = 0
    error: str = ""
    ended: datetime | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    #: Set to end the job between two batches.
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, store: SyncStore) -> None:
        """Work until the job is done, stopped or failed. Raise nothing, since other jobs wait behind it."""
        try:
            self.stage = self._work(store)
        except Exception as error:  # noqa: BLE001
            # The messages of these errors name no event. Other messages may.
            is_shown = isinstance(error, UnknownCause | EventsChanged)
            self.error = str(error) if is_shown else type(error).__name__
            self.stage = Stage.FAILED
        self.ended = datetime.now(UTC)
        done = sum(self.outcomes[name] for name in VERBS[self.verb].done)
        outcome = {"ended": str(self.stage), "events": self.total, "done": done}
        if self.error:
            outcome["error"] = self.error
        log.info("console_job_ended", who=self.operator, job=self.id, verb=self.verb, **outcome)

    def _work(self, store: SyncStore) -> Stage:
        if self.stopped.is_set():
            return Stage.STOPPED
        self.stage = Stage.RUNNING
        events = read_page(store, self.chosen).events[::-1]  # The oldest first.
        if fingerprint(events) != self.counted:
            raise EventsChanged("the events have changed since they were counted: count them again")
        self.total = len(events)
        step = VERBS[self.verb].begin(store, self)
        for batch in batched(events, BATCH):
            self.outcomes = self.outcomes + Counter(outcome.decode() for outcome in step(batch))
            if self.stopped.is_set() and self.worked < self.total:
                return Stage.STOPPED
        if isinstance(step, Erasure):
            late = Counter(outcome.decode() for outcome in step.finish(events))
            self.outcomes, self.total = self.outcomes + late, self.total + late.total()
        return Stage.DONE

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


class Jobs:
    """The jobs of this console. One thread runs them one after the other."""

    def __init__(self, store: SyncStore) -> None:
        self._store = store
        self._jobs: dict[str, Job] = {}
        self._thread = ThreadPoolExecutor(max_workers=1)

    def add(self, job: Job) -> None:
        """Run the job after all earlier jobs."""
        for job_id in [job.id for job in self._jobs.values() if job.ended][:-_MAX_FINISHED]:
            del self._jobs[job_id]
        self._jobs[job.id] = job
        log.info("console_" + job.verb, who=job.operator, events=job.which, job=job.id)
        self._thread.submit(job.run, self._store)

    def get(self, id_: str) -> Job:
        """Return the job, or raise a 404 if it is unknown or forgotten."""
        if id_ not in self._jobs:
            raise HTTPException(404, "There is no such job. Jobs of an earlier console are in its log.")
        return self._jobs[id_]

    def all(self) -> list[Job]:
        """Return the kept jobs, newest first."""
        return list(self._jobs.values())[::-1]

    def stop(self) -> None:
        """Stop all jobs between two batches, and wait for the running batch."""
        for job in self.all():
            job.stopped.set()
        self._thread.shutdown()


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
        job = Job(verb, chosen, operator(request), form.get("counted", ""))
        jobs.add(job)
        return RedirectResponse(f"/jobs/{job.id}", 303)

    async def show_all(request: Request) -> Response:
        return page(request, "jobs.html", title="Jobs", jobs=jobs.all())

    async def show(request: Request) -> Response:
        job = jobs.get(request.path_params["id"])
        return page(request, "job.html", title=f"{job.verb.capitalize()} {job.id}", job=job)

    async def stop(request: Request) -> Response:
        await read_form(request)
        job = jobs.get(request.path_params["id"])
        log.info("console_job_stopped", who=operator(request), job=job.id)
        job.stopped.set()
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
