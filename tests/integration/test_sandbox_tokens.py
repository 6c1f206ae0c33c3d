"""Tokens of the sandbox, and what is refused without one."""

import httpx
import plain
import pytest
from sandbox_api import FORM, TOKEN, refused
from serving import Platform


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
    ],
)
def test_the_token_endpoint_refuses_as_identity_providers_do(
    api: httpx.Client, form: dict[str, str], status: int, error: str
) -> None:
    answer = api.post(TOKEN, data=form)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


def test_another_realm_does_not_exist(api: httpx.Client) -> None:
    assert api.post(TOKEN.replace("realms/sandbox", "realms/other"), data=FORM).status_code == 404


def test_every_operation_of_the_platform_needs_a_token(sandbox: Platform) -> None:
    document = plain.get(f"{sandbox.url}/openapi.json").json()
    asked = 0
    for path, methods in document["paths"].items():
        for method in methods:
            if path.startswith("/realms/"):
                continue
            answer = plain.request(method, sandbox.url + path.replace("{", "").replace("}", ""))
            refused(answer, 401, "UNAUTHORIZED", "Unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            asked += 1
    assert asked == 17
