"""The sandbox's API as a whole: its documents, its tokens and its endpoints."""

from typing import Any
from uuid import uuid4

import httpx
import plain
import pytest
from sandbox_api import CREDS, FORM, TOKEN, data, missing, refused
from serving import Platform


def test_the_documents_describe_every_operation_and_the_platforms_need_a_token(sandbox: Platform) -> None:
    paths = plain.get(f"{sandbox.url}/openapi.json").json()["paths"]
    described = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert described == {
        "POST /me-creds/api/presets/credentials",
        "GET /me-creds/api/templates/credentials/{id}",
        "POST /me-creds/api/certificates/csrs/{id}/import",
        "POST /me-creds/api/trusted-entities",
        "POST /me-creds/api/endpoints",
        "GET /me-creds/api/endpoints",
        "DELETE /me-creds/api/endpoints/{id}",
        "GET /me-creds/api/credentials",
        "GET /me-creds/api/credentials/{id}",
        "GET /me-creds/api/presentations",
        "GET /me-creds/api/presentations/{id}",
        "POST /consumer-onboarding/api/users",
        "GET /consumer-onboarding/api/users",
        "GET /consumer-onboarding/api/users/by-external-identifier/{externalIdentifier}",
        "GET /consumer-onboarding/api/users/{username}/external-identifier",
        "PATCH /consumer-onboarding/api/users/{username}/idp-link",
        "POST /me-wallet/api/credentials",
    }
    for operation in described:
        method, path = operation.split()
        answer = plain.request(method, sandbox.url + path.replace("{", "").replace("}", ""))
        refused(answer, 401, "UNAUTHORIZED", "Unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    own = plain.get(f"{sandbox.url}/sandbox/openapi.json").json()["paths"]
    assert all(path.startswith("/sandbox/") for path in own)


def test_a_token_has_exactly_the_fields_of_the_specification(api: httpx.Client) -> None:
    granted = api.post(TOKEN, data=FORM).json()
    assert granted.pop("access_token")
    assert granted == {
        "expires_in": 300,
        "refresh_expires_in": 0,
        "token_type": "Bearer",
        "not-before-policy": 0,
        "scope": "",
    }


@pytest.mark.parametrize(
    ("form", "status", "error"),
    [
        (FORM | {"client_secret": "wrong"}, 401, "invalid_client"),
        (FORM | {"client_id": "wrong"}, 401, "invalid_client"),
        ({"grant_type": "client_credentials"}, 401, "invalid_client"),
        (FORM | {"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"client_id": "sandbox", "client_secret": "sandbox"}, 400, "invalid_request"),
        (FORM | {"client_id": ["other", "sandbox"]}, 400, "invalid_request"),
    ],
)
def test_the_token_endpoint_refuses_as_identity_providers_do(
    api: httpx.Client, form: dict[str, Any], status: int, error: str
) -> None:
    answer = api.post(TOKEN, data=form)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


def test_another_realm_does_not_exist(api: httpx.Client) -> None:
    assert api.post(TOKEN.replace("realms/sandbox", "realms/other"), data=FORM).status_code == 404


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
