"""Jobs: how far each has come, and how it ended."""

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from credhook.console.auth.forms import read_form
from credhook.console.auth.sessions import session_of
from credhook.console.jobs.job import Job
from credhook.console.jobs.running import Jobs
from credhook.console.pages.live import Streams
from credhook.console.ui.rendering import fragment, page

log = structlog.get_logger("credhook.console")


def routes(jobs: Jobs, streams: Streams) -> list[Route]:
    """The list, each job, its live part, and the button that stops it."""

    def wanted(request: Request) -> Job:
        job = jobs.get(request.path_params["id"])
        if job is None:
            raise HTTPException(404, "This console knows no such job; those of an earlier process are in its log.")
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
