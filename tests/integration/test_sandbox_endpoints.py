"""Webhook endpoints of the sandbox: registered, listed, removed, refused."""

from uuid import uuid4

import httpx
from sandbox_api import CREDS, data, missing, refused


def test_an_endpoint_is_registered_listed_and_removed(api: httpx.Client) -> None:
    id_ = f"mine-{uuid4()}"
    wanted = {"url": "https://127.0.0.1:9/x", "id": id_, "filterTypes": ["openid4vc.issuance.failed"]}
    endpoint = data(api.post(f"{CREDS}/endpoints", json=wanted), 201)
    assert {name: endpoint[name] for name in wanted} == wanted
    assert endpoint.keys() == {"id", "url", "filterTypes", "createdAt", "updatedAt"}
    listed = api.get(f"{CREDS}/endpoints").json()
    assert endpoint in listed
    refused(api.post(f"{CREDS}/endpoints", json=wanted), 409, "CONFLICT", "Conflict")
    gone = api.delete(f"{CREDS}/endpoints/{id_}")
    assert (gone.status_code, gone.content) == (204, b"")
    missing(api.delete(f"{CREDS}/endpoints/{id_}"))


def test_without_filter_types_all_ten_are_received(api: httpx.Client) -> None:
    endpoint = data(api.post(f"{CREDS}/endpoints", json={"url": "https://127.0.0.1:9/x"}), 201)
    assert len(set(endpoint["filterTypes"])) == 10
    api.delete(f"{CREDS}/endpoints/{endpoint['id']}")
