"""The sandbox's API asked over HTTP, as the platform's specification has it; an answer is data or an error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import httpx

from support import plain
from support.process.serving import Platform

CREDS = "/me-creds/api"
USERS = "/consumer-onboarding/api/users"
FORM = {"grant_type": "client_credentials", "client_id": "sandbox", "client_secret": "sandbox"}
TOKEN = "/realms/sandbox/protocol/openid-connect/token"


@contextmanager
def authorized(sandbox: Platform) -> Iterator[httpx.Client]:
    """A client with a token, which lives for five minutes."""
    with plain.Client(base_url=sandbox.url) as client:
        authorize(client)
        yield client


def authorize(client: httpx.Client) -> None:
    """Give it another token."""
    granted = client.post(TOKEN, data=FORM).raise_for_status().json()
    client.headers["authorization"] = f"Bearer {granted['access_token']}"


def registered(sandbox: Platform) -> list[dict[str, Any]]:
    """The webhook endpoints that the platform has."""
    with authorized(sandbox) as api:
        found: list[dict[str, Any]] = api.get(f"{CREDS}/endpoints").raise_for_status().json()
    return found


def data(answer: httpx.Response, status: int = 200) -> Any:
    """What is in the envelope of a success."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() <= {"data", "links", "meta"}
    return body["data"]


def listed(api: httpx.Client, noun: str) -> list[Any]:
    """All that a list of issuances or presentations shows, page after page."""
    found, following = [], f"{CREDS}/{noun}"
    while following:
        answer = api.get(following).raise_for_status().json()
        found += answer["data"]
        following = answer.get("links", {}).get("next", "")
    return found


def refused(answer: httpx.Response, status: int, code: str, title: str) -> str:
    """The detail of an error that has all that the specification asks of one."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    first = body["errors"][0]
    assert body.keys() == {"errors"}
    assert first.keys() <= {"detail", "id", "status", "code", "title", "source", "meta"}
    assert (first["status"], first["code"], first["title"]) == (status, code, title)
    assert UUID(first["id"])
    assert isinstance(first["detail"], str)
    return str(first["detail"])


def invalid(answer: httpx.Response) -> str:
    return refused(answer, 400, "VALIDATION_ERROR", "Validation Failed")


def missing(answer: httpx.Response) -> str:
    return refused(answer, 404, "NOT_FOUND", "Not Found")
