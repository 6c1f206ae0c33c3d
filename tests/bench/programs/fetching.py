"""The work of dramatiq: fetch the details of an event with httpx, as fast as httpx can.

httpx's pool slows down with the square of its connections, so that each fetch under way has a client of its own, with
one connection, and all clients share their trust for TLS, which is slow to load.
"""

import os
from collections import deque
from typing import Any

import httpx

URL = os.environ["API_URL"] + "/me-creds/api/credentials/"
EVENTS = int(os.environ["EVENTS"])

OPTIONS: dict[str, Any] = {
    "headers": {"Authorization": "Bearer token"},
    "limits": httpx.Limits(max_connections=1, max_keepalive_connections=1),
    "timeout": 10.0,
    "trust_env": False,
    "verify": httpx.create_ssl_context(),
}

#: Clients that no thread uses just now.
idle: deque[httpx.Client] = deque()


def event_ids() -> list[str]:
    """Return the ids to enqueue."""
    return [f"iss_{number:024x}" for number in range(EVENTS)]


def fetch(event_id: str) -> Any:
    try:
        client = idle.pop()
    except IndexError:
        client = httpx.Client(**OPTIONS)
    try:
        return client.get(URL + event_id).raise_for_status().json()
    finally:
        idle.append(client)
