"""The sandbox's API as a whole: its document, its tokens, its errors and its endpoints."""

import json
import re
from typing import Any

import httpx
import pytest

from credhook.sandbox.app import assemble
from credhook.testing.fake_platform import new_tenant
from support import plain
from support.platform.sandbox_api import CREDS, FORM, TOKEN, USERS, invalid, missing, refused
from support.process.serving import Platform


def test_openapi_document_describes_every_operation(sandbox: Platform) -> None:
    text = plain.get(f"{sandbox.url}/openapi.json").text
    document = json.loads(text)
    assert set(re.findall('"#/components/schemas/([^"]+)"', text)) == document["components"]["schemas"].keys()
    described = {}
    for path, methods in document["paths"].items():
        for method, each in methods.items():
            (status, success), (_, error) = each["responses"].items()
            assert error["content"]["application/json"]["schema"]["title"] == "ErrorBody"
            assert each.get("requestBody", {"required": True})["required"]
            schema = success.get("content", {}).get("application/json", {}).get("schema", {})
            takes = [*(one["name"] for one in each["parameters"]), *["body"] * ("requestBody" in each)]
            if "security" in each:
                described[f"{method.upper()} {path}"] = status, schema.get("required") == ["data"], takes
    assert described == {  # Status of success, whether there is an envelope, what it takes.
        "POST /me-creds/api/presets/credentials": ("200", True, ["body"]),
        "GET /me-creds/api/templates/credentials/{id}": ("200", True, ["id"]),
        "POST /me-creds/api/certificates/csrs/{id}/import": ("200", True, ["id", "body"]),
        "POST /me-creds/api/trusted-entities": ("201", True, ["body"]),
        "POST /me-creds/api/endpoints": ("201", True, ["body"]),
        "GET /me-creds/api/endpoints": ("200", False, []),
        "DELETE /me-creds/api/endpoints/{id}": ("204", False, ["id"]),
        "GET /me-creds/api/credentials": ("200", True, ["page[after]"]),
        "GET /me-creds/api/credentials/{id}": ("200", True, ["id"]),
        "GET /me-creds/api/presentations": ("200", True, ["page[after]"]),
        "GET /me-creds/api/presentations/{id}": ("200", True, ["id"]),
        "POST /consumer-onboarding/api/users": ("201", True, ["body"]),
        "GET /consumer-onboarding/api/users": ("200", True, ["page[after]"]),
        "GET /consumer-onboarding/api/users/by-external-identifier/{externalIdentifier}":
            ("200", True, ["externalIdentifier"]),
        "GET /consumer-onboarding/api/users/{username}/external-identifier": ("200", True, ["username"]),
        "PATCH /consumer-onboarding/api/users/{username}/idp-link": ("200", True, ["username", "body"]),
        "POST /me-wallet/api/credentials": ("201", False, ["body"]),
    }  # fmt: skip
    for operation in described:
        method, path = operation.split()
        answer = plain.request(method, sandbox.url + path.replace("{", "").replace("}", ""))
        refused(answer, 401, "UNAUTHORIZED", "Unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_token_has_exactly_the_fields_of_the_specification(api: httpx.Client) -> None:
    answer = api.post(TOKEN, data=FORM)
    granted = answer.json()
    assert (answer.headers["cache-control"], bool(granted.pop("access_token"))) == ("no-store", True)
    numbers = {"expires_in": 300, "refresh_expires_in": 0, "not-before-policy": 0}
    assert granted == {**numbers, "token_type": "Bearer", "scope": ""}


@pytest.mark.parametrize(
    ("form", "status", "error"),
    [
        (FORM | {"client_secret": "wrong"}, 401, "invalid_client"),
        (FORM | {"client_id": "wrong"}, 401, "invalid_client"),
        ({"grant_type": "client_credentials"}, 401, "invalid_client"),
        (FORM | {"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"client_id": "sandbox", "client_secret": "sandbox"}, 400, "invalid_request"),
    ],
)
def test_the_token_endpoint_refuses_as_identity_providers_do(
    api: httpx.Client, form: dict[str, Any], status: int, error: str
) -> None:
    answer = api.post(TOKEN, data=form)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


def test_sandbox_refuses_unknown_requests_in_one_envelope(api: httpx.Client) -> None:
    missing(api.get("/nowhere"))
    missing(api.get(f"{CREDS}/nothing/"))
    assert api.head(f"{CREDS}/endpoints").status_code == 200
    answer = api.put(f"{CREDS}/endpoints")
    refused(answer, 405, "METHOD_NOT_ALLOWED", "Method Not Allowed")
    assert {each.strip() for each in answer.headers["allow"].split(",")} == {"GET", "HEAD", "POST"}
    refused(api.post(USERS, data={"email": "x"}), 415, "UNSUPPORTED_MEDIA_TYPE", "Unsupported Media Type")


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"name": NaN}', b"[" * 100_000])
def test_a_body_that_makes_no_sense_is_a_400(api: httpx.Client, body: bytes) -> None:
    for path in (f"{CREDS}/trusted-entities", f"{CREDS}/presets/credentials", USERS, "/sandbox/events"):
        invalid(api.post(path, content=body, headers={"content-type": "Application/JSON; charset=utf-8"}))


async def test_a_defect_is_an_error_in_the_same_envelope() -> None:
    tenant = new_tenant()
    tenant.state.close()
    transport = httpx.ASGITransport(assemble(tenant), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=tenant.base_url) as client:
        answer = await client.get("/sandbox/templates")
    assert "its log says why" in refused(answer, 500, "INTERNAL_SERVER_ERROR", "Internal Server Error")


def test_only_names_of_this_machine_are_answered(sandbox: Platform) -> None:
    """A page that points its own name at this machine shows that name."""
    for host, status in (("localhost:8700", 200), ("evil.example", 400), ("localhost.evil.example", 400)):
        assert plain.get(f"{sandbox.url}/", headers={"host": host}).status_code == status
