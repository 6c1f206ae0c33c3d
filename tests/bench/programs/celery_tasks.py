"""Celery on Redis, without a result backend. Run as a program, it publishes."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# (Celery is not among our requirements; this runs in an environment of its own.)

import os

from bench.programs.fetching import event_ids, fetch
from celery import Celery

app = Celery("tasks", broker=os.environ["REDIS_URL"])
app.conf.task_ignore_result = True


@app.task(name="handle")
def handle(event_id: str) -> None:
    fetch(event_id)


def fill() -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for event_id in event_ids():
            handle.apply_async((event_id,), task_id=event_id, producer=producer)


if __name__ == "__main__":
    fill()
