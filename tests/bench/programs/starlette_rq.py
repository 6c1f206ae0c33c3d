"""Starlette and RQ as RQ's documentation leads one to write it: verify, then `Queue.enqueue` in a thread.

RQ deduplicates by the job's id, for as long as it keeps the job.
"""

import os
from contextlib import suppress

from redis import Redis
from rq import Queue
from rq.exceptions import DuplicateJobError
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

webhook = Webhook(os.environ["WEBHOOK_SECRET"])
queue = Queue(connection=Redis.from_url(os.environ["REDIS_URL"]))


async def receive(request: Request) -> Response:
    try:
        event = webhook.verify(await request.body(), dict(request.headers))
    except WebhookVerificationError:
        return Response(status_code=401)
    await run_in_threadpool(enqueue, request.headers["webhook-id"], event)
    return Response(status_code=202)


def enqueue(webhook_id: str, event: object) -> None:
    with suppress(DuplicateJobError):
        queue.enqueue("tasks.process", webhook_id, event, job_id=webhook_id, unique=True)


app = Starlette(routes=[Route("/webhooks", receive, methods=["POST"])])
