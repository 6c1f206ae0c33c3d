"""The token request, byte by byte."""

from base64 import b64decode
from urllib.parse import parse_qsl, unquote

import httpx
import pytest
from pydantic import SecretStr

from credhook.worker.api.auth import ClientCredentials
from credhook.worker.api.token_request import TokenRequest
from credhook.worker.settings import PlatformSettings

URL = "https://id.example/token"
SECRET = SecretStr("p:w%d+ /ä")


def made(request: TokenRequest) -> httpx.Request:
    return httpx.Request("POST", request.url, data=request.form, headers=request.headers)


def form(request: httpx.Request) -> list[tuple[str, str]]:
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    return parse_qsl(request.content.decode(), keep_blank_values=True)


def test_by_default_id_and_secret_go_into_the_form() -> None:
    request = made(TokenRequest(URL, "me & you", SECRET))
    assert "authorization" not in request.headers
    assert form(request) == [
        ("grant_type", "client_credentials"),
        ("client_id", "me & you"),
        ("client_secret", "p:w%d+ /ä"),
    ]


def test_in_a_header_both_are_percent_encoded_and_nothing_of_them_is_in_the_form() -> None:
    request = made(TokenRequest(URL, "me:you", SECRET, "basic"))
    scheme, _, encoded = request.headers["authorization"].partition(" ")
    assert (scheme, b64decode(encoded)) == ("Basic", b"me%3Ayou:p%3Aw%25d%2B%20%2F%C3%A4")
    client, _, secret = b64decode(encoded).decode().partition(":")
    assert (unquote(client), unquote(secret)) == ("me:you", "p:w%d+ /ä")
    assert form(request) == [("grant_type", "client_credentials")]


def test_what_the_token_is_for_is_asked_for_and_each_resource_is_one_parameter() -> None:
    request = made(TokenRequest(URL, "me", SECRET, "basic", "a b", "https://api", ("https://one", "urn:two")))
    assert form(request)[1:] == [
        ("scope", "a b"),
        ("audience", "https://api"),
        ("resource", "https://one"),
        ("resource", "urn:two"),
    ]


def test_the_secret_is_not_shown() -> None:
    assert "p:w" not in repr(TokenRequest(URL, "me", SECRET))


ENVIRONMENT = {
    "CREDHOOK_API_URL": "https://api.example",
    "CREDHOOK_TOKEN_URL": URL,
    "CREDHOOK_CLIENT_ID": "me",
    "CREDHOOK_CLIENT_SECRET": "s3cret",
}


def test_the_settings_say_how_and_for_what_a_token_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {
        "CREDHOOK_TOKEN_AUTH": "basic",
        "CREDHOOK_SCOPE": "read:details write",
        "CREDHOOK_AUDIENCE": "https://api.example",
        "CREDHOOK_RESOURCE": "https://one.example/x urn:two",
    }
    for name, value in (ENVIRONMENT | asked).items():
        monkeypatch.setenv(name, value)
    flow = ClientCredentials.from_settings(PlatformSettings()).steps(httpx.Request("GET", "https://api.example"))
    request = next(flow)
    assert isinstance(request, httpx.Request)
    assert request.headers["authorization"].startswith("Basic ")
    assert form(request) == [
        ("grant_type", "client_credentials"),
        ("scope", "read:details write"),
        ("audience", "https://api.example"),
        ("resource", "https://one.example/x"),
        ("resource", "urn:two"),
    ]
