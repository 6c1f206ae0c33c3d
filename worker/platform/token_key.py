"""Under which names the fleet's access token stands in Redis. Pure."""

import json
from hashlib import sha256
from typing import TYPE_CHECKING

from credhook.store import PREFIX

if TYPE_CHECKING:  # It imports a client of the platform: half of the time that `credhook status` would take.
    from credhook.worker.api.oauth.credentials import Client


def key_name(token_url: str, client_id: str, *narrowed: str | None) -> str:
    """Return the name of the Redis key that holds the token of this client; its neighbours' names begin with it.

    `narrowed`: scope, audience and resources that the token is asked for, None where there is none.
    """
    known_by = [token_url, client_id, *(narrowed if any(narrowed) else ())]
    digest = sha256(json.dumps(known_by).encode()).hexdigest()
    return f"{PREFIX}token:{digest[:40]}"


def name_from(settings: "Client") -> str:
    """The name of the key that holds the token of the client that the settings name."""
    return key_name(settings.token_url, settings.client_id, settings.scope, settings.audience, *settings.resource)


def granted_name(name: str) -> str:
    """The name of the key that says when the token under that name was granted."""
    return f"{name}:granted"
