"""RQ as its documentation shows it. Run as a program, it enqueues."""

import os
from typing import Any

from bench.programs.fetching import event_ids, fetch
from redis import Redis
from rq import Queue


def handle(event_id: str) -> None:
    fetch(event_id)


def fill() -> None:
    function = "bench.programs.rq_jobs.handle"
    jobs: list[Any] = [Queue.prepare_data(function, (event_id,), job_id=event_id) for event_id in event_ids()]
    Queue(connection=Redis.from_url(os.environ["REDIS_URL"])).enqueue_many(jobs)


if __name__ == "__main__":
    fill()
