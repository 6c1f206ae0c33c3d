"""dramatiq on Redis. Run as a program, it enqueues."""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# (dramatiq is not among our requirements; this runs in an environment of its own.)

import os

import dramatiq
from bench.programs.fetching import event_ids, fetch
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["REDIS_URL"]))


@dramatiq.actor
def handle(event_id: str) -> None:
    fetch(event_id)


def fill() -> None:
    for event_id in event_ids():
        handle.send(event_id)


if __name__ == "__main__":
    fill()
