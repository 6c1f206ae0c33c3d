"""The token request, byte by byte."""

from base64 import b64decode
from urllib.parse import parse_qsl, unquote

import pytest
from pydantic import SecretStr

from credhook.worker.api.errors import InvalidRequest, Unauthorized
from credhook.worker.api.http.exchange import Request, Response
from credhook.worker.api.token import ClientCredentials, TokenAuth
from credhook.worker.settings import PlatformSettings

URL = "https://id.example/token"
SECRET = SecretStr("p:w%d+ /ä")


class Recorder:
    """A transport that remembers requests and answers each with 404."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def send(self, request: Request) -> Response:
        self.requests.append(request)
        return Response(404, {}, b"")

    async def aclose(self) -> None:
        pass


def form(request: Request) -> list[tuple[str, str]]:
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    return parse_qsl((request.body or b"").decode("ascii"), keep_blank_values=True)


def test_it_is_a_post_to_the_token_url_that_may_be_repeated() -> None:
    request = ClientCredentials(URL, "me", SecretStr("s3cret")).request()
    assert (request.method, request.url, request.repeatable) == ("POST", URL, True)
    assert request.body == b"grant_type=client_credentials&client_id=me&client_secret=s3cret"
    assert request.headers["Accept"] == "application/json"
    assert request.headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("method", ["post", "basic"])
async def test_a_secret_that_cannot_be_sent_is_an_error_that_does_not_show_it(method: TokenAuth) -> None:
    recorder = Recorder()
    with pytest.raises(InvalidRequest, match=r"^token: the request cannot be sent: ") as caught:
        await ClientCredentials(URL, "me", "s3cret\ud800", method=method).token(recorder)
    assert recorder.requests == []
    assert caught.value.__context__ is None  # It would hold the secret.


def test_by_default_id_and_secret_go_into_the_form() -> None:
    request = ClientCredentials(URL, "me & you", SECRET).request()
    assert "Authorization" not in request.headers
    assert form(request) == [
        ("grant_type", "client_credentials"),
        ("client_id", "me & you"),
        ("client_secret", "p:w%d+ /ä"),
    ]


def test_in_a_header_both_are_percent_encoded_and_nothing_of_them_is_in_the_form() -> None:
    request = ClientCredentials(URL, "me:you", SECRET, method="basic").request()
    scheme, _, encoded = request.headers["Authorization"].partition(" ")
    assert (scheme, b64decode(encoded)) == ("Basic", b"me%3Ayou:p%3Aw%25d%2B%20%2F%C3%A4")
    client, _, secret = b64decode(encoded).decode().partition(":")
    assert (unquote(client), unquote(secret)) == ("me:you", "p:w%d+ /ä")
    assert form(request) == [("grant_type", "client_credentials")]


def test_what_the_token_is_for_is_asked_for_and_each_resource_is_one_parameter() -> None:
    resources = ("https://one", "urn:two")
    auth = ClientCredentials(
        URL, "me", SECRET, method="basic", scope="a b", audience="https://api", resources=resources
    )
    request = auth.request()
    assert form(request)[1:] == [
        ("scope", "a b"),
        ("audience", "https://api"),
        ("resource", "https://one"),
        ("resource", "urn:two"),
    ]


def test_the_secret_is_not_shown() -> None:
    methods: tuple[TokenAuth, ...] = ("post", "basic")
    for method in methods:
        request = ClientCredentials(URL, "me", SECRET, method=method)
        sent = request.request()
        shown = f"{request!r} {sent!r}"
        for secret in ("p:w", "p%3Aw", *sent.headers.get("Authorization", "").split()):
            assert secret not in shown


ENVIRONMENT = {
    "CREDHOOK_API_URL": "https://api.example",
    "CREDHOOK_TOKEN_URL": URL,
    "CREDHOOK_CLIENT_ID": "me",
    "CREDHOOK_CLIENT_SECRET": "s3cret",
}


async def test_the_settings_say_how_and_for_what_a_token_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {
        "CREDHOOK_TOKEN_AUTH": "basic",
        "CREDHOOK_SCOPE": "read:details write",
        "CREDHOOK_AUDIENCE": "https://api.example",
        "CREDHOOK_RESOURCE": "https://one.example/x urn:two",
    }
    for name, value in (ENVIRONMENT | asked).items():
        monkeypatch.setenv(name, value)
    recorder = Recorder()
    with pytest.raises(Unauthorized):
        await ClientCredentials.from_settings(PlatformSettings()).token(recorder)
    (request,) = recorder.requests
    assert request.headers["Authorization"].startswith("Basic ")
    assert form(request) == [
        ("grant_type", "client_credentials"),
        ("scope", "read:details write"),
        ("audience", "https://api.example"),
        ("resource", "https://one.example/x"),
        ("resource", "urn:two"),
    ]
