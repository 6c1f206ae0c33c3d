"""The author's own URL, registered with a platform that is not played here, and taken away at the end."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from credhook.sandbox.local.environment import CREDHOOK, CannotStart, LocalEnvironment


@contextmanager
def registered(local: LocalEnvironment, url: str) -> Iterator[None]:
    """Have the platform deliver to the URL for as long as this lasts.

    Raises:
        CannotStart: the platform refuses, or delivers there already: what others have registered is left alone.
    """
    if ids := _ids(local, url):
        raise CannotStart(f"the platform delivers to this URL already: `credhook endpoints delete {ids[0]}` ends that")
    try:
        local.run(*CREDHOOK, "endpoints", "apply", "--all")
        yield
    finally:
        for endpoint_id in _ids(local, url):
            local.run(*CREDHOOK, "endpoints", "delete", endpoint_id)


def _ids(local: LocalEnvironment, url: str) -> list[str]:
    """The endpoints that the platform has for it."""
    listed = json.loads(local.run(*CREDHOOK, "api", "endpoints", "list"))
    return [endpoint["id"] for endpoint in listed if endpoint["url"] == url]
