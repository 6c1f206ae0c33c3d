"""FastAPI and Celery on Redis: verify, mark the id as seen, publish the task in a thread.

Celery does not deduplicate, so the ids that were seen are kept beside it.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# (FastAPI and Celery are not among our requirements; this runs in an environment of its own.)

import os

from celery import Celery
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from redis import Redis
from standardwebhooks import Webhook, WebhookVerificationError

RETENTION = 7 * 86_400

webhook = Webhook(os.environ["WEBHOOK_SECRET"])
redis = Redis.from_url(os.environ["REDIS_URL"])
tasks = Celery("tasks", broker=os.environ["REDIS_URL"])
tasks.conf.task_ignore_result = True
app = FastAPI()


@tasks.task(name="tasks.process")
def process(webhook_id: str, event: object) -> None:
    """Run by a worker, of which the benchmark has none."""


@app.post("/webhooks", status_code=202)
async def receive(request: Request) -> None:
    try:
        event = webhook.verify(await request.body(), dict(request.headers))
    except WebhookVerificationError as error:
        raise HTTPException(401) from error
    await run_in_threadpool(enqueue, request.headers["webhook-id"], event)


def enqueue(webhook_id: str, event: object) -> None:
    if redis.set(f"seen:{webhook_id}", 1, nx=True, ex=RETENTION):
        process.apply_async((webhook_id, event), task_id=webhook_id)
