"""dramatiq on Redis, and httpx as fast as httpx can. Run as a program, it enqueues.

httpx's pool slows down with the square of its connections, so that each fetch under way has a client of its own, with
one connection, and all clients share their trust for TLS, which is slow to load.
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"
# (dramatiq is not among our requirements; this runs in an environment of its own.)

import os
from collections import deque
from typing import Any

import dramatiq
import httpx
from dramatiq.brokers.redis import RedisBroker

URL = os.environ["API_URL"] + "/me-creds/api/credentials/"

OPTIONS: dict[str, Any] = {
    "headers": {"Authorization": "Bearer token"},
    "limits": httpx.Limits(max_connections=1, max_keepalive_connections=1),
    "timeout": 10.0,
    "trust_env": False,
    "verify": httpx.create_ssl_context(),
}

#: Clients that no thread uses just now.
idle: deque[httpx.Client] = deque()

dramatiq.set_broker(RedisBroker(url=os.environ["REDIS_URL"]))


@dramatiq.actor
def handle(event_id: str) -> None:
    try:
        client = idle.pop()
    except IndexError:
        client = httpx.Client(**OPTIONS)
    try:
        client.get(URL + event_id).raise_for_status().json()
    finally:
        idle.append(client)


if __name__ == "__main__":
    for number in range(int(os.environ["EVENTS"])):
        handle.send(f"iss_{number:024x}")
