"""Replay and erase: the count first, then a job that is followed on a page of its own."""

from collections.abc import Callable, Sequence
from dataclasses import replace as but
from datetime import UTC, datetime
from typing import Final, NamedTuple

from redis import Redis
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from credhook.console.auth.forms import field, read_form
from credhook.console.auth.sessions import session_of
from credhook.console.jobs.job import Task
from credhook.console.jobs.running import Jobs, TooMany
from credhook.console.pages.filters import address, in_words, selection
from credhook.console.pages.ledger import Ledger
from credhook.console.ui.rendering import page
from credhook.store import Keys, State
from credhook.worker.commands.events.erase import DONE as ERASED
from credhook.worker.commands.events.erase import LEFT as NOT_ERASED
from credhook.worker.commands.events.erase import Erasure
from credhook.worker.commands.events.replay import DONE as REPLAYED
from credhook.worker.commands.events.replay import LEFT as NOT_REPLAYED
from credhook.worker.commands.events.replay import how_to_replay
from credhook.worker.commands.search.counting import count
from credhook.worker.commands.search.reading import find
from credhook.worker.commands.search.selection import EventSummary, Selection
from credhook.worker.queue.replay import Replay, Settled


class Action(NamedTuple):
    """What can be done to many events; `verb` is its name, in the address as well."""

    verb: str
    task: Callable[[Redis, Keys, Selection, str], Task]


def _replaying(redis: Redis, index: Keys, chosen: Selection, who: str) -> Task:
    put_back = Replay(redis, queue=index.queue, by=f"{who} (console)")

    how = how_to_replay(chosen)

    def step(batch: Sequence[EventSummary]) -> Sequence[bytes]:
        return put_back([Settled(event.webhook_id, event.state) for event in batch], how=how)

    return Task("replay", "replayed", _oldest_first(chosen), step, REPLAYED, NOT_REPLAYED)


def _erasing(redis: Redis, index: Keys, chosen: Selection, who: str) -> Task:  # noqa: ARG001  An erased event has no story.
    erasure = Erasure(redis, index, chosen)
    return Task(
        "erase", "erased", _oldest_first(chosen), erasure, ERASED, NOT_ERASED, erasure.begin, erasure.finish
    )  # fmt: skip


def _oldest_first(chosen: Selection) -> Callable[[Redis, Keys], Sequence[EventSummary]]:
    return lambda redis, index: find(redis, index, chosen)[::-1]


ACTIONS: Final = (Action("replay", _replaying), Action("erase", _erasing))


def routes(ledger: Ledger, jobs: Jobs) -> list[Route]:
    """For each action the page that counts, and what its form posts to."""
    return [route for action in ACTIONS for route in _routes(action, ledger, jobs)]


def _routes(action: Action, ledger: Ledger, jobs: Jobs) -> list[Route]:
    async def ask(request: Request) -> Response:
        now = datetime.now(UTC)
        chosen = _chosen(request.query_params.multi_items(), now)
        return await _counted(request, chosen, now)

    async def _counted(request: Request, chosen: Selection, now: datetime, problem: str = "") -> Response:
        # What comes from now on was not counted, and is left alone.
        fixed = but(chosen, until=chosen.until or now) if not chosen.ids else chosen
        counts = await ledger.ask(lambda redis, index: count(redis, index, fixed, retention=ledger.retention))
        rows = sorted(counts.items())
        context = {
            "action": action,
            "rows": rows,
            "total": sum(number for _, number in rows),
            "again": sum(number for (state, _), number in rows if state == State.DONE),
            "which": in_words(chosen),
            "address": address(fixed),
            "back": address(chosen),
            "problem": problem,
        }
        return page(request, "confirm.html", 400 if problem else 200, title=action.verb.capitalize(), **context)

    async def act(request: Request) -> Response:
        form, now = await read_form(request), datetime.now(UTC)
        chosen = _chosen([pair for pair in form if pair[0] not in {"counted", "typed"}], now)
        if action.verb == "erase" and field(form, "typed").replace(" ", "") != field(form, "counted"):
            return await _counted(
                request, chosen, now, "Type the number of events as it is shown, to say that you mean it."
            )
        who = session_of(request).who
        task = action.task(ledger.redis, ledger.index, chosen, who)
        try:
            job = jobs.add(task, who=who, which=in_words(chosen))
        except TooMany:
            raise HTTPException(503, "Too many jobs wait already; stop one, or wait until some are done.") from None
        return RedirectResponse(f"/jobs/{job.id}", 303)

    return [Route(f"/{action.verb}", ask), Route(f"/{action.verb}", act, methods=["POST"])]


def _chosen(query: Sequence[tuple[str, str]], now: datetime) -> Selection:
    """What is to be worked on: never everything.

    Raises:
        HTTPException: 400, it cannot be read, or nothing says which.
    """
    try:
        chosen = selection(query, now)
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    if chosen.is_empty:
        raise HTTPException(400, "Say which events first: filter them on the page of events.")
    return but(chosen, after=None)
