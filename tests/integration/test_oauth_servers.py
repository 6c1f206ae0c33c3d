"""Tokens of a server that others have written: Authlib's, over TLS in a thread."""

import asyncio
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme
from authlib.oauth2.rfc6749 import AuthorizationServer, ClientMixin, OAuth2Request
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc6750 import BearerTokenGenerator
from in_thread import Asked, http_server

from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.token import ClientCredentials, TokenAuth

CLIENT_ID, SECRET = "me:the worker", "p%w+ /~:"


class Client(ClientMixin):  # type: ignore[misc]  # Authlib ships no types.
    """The one client that is registered, with one way to prove who it is."""

    def __init__(self, method: str) -> None:
        self.method = method

    def get_client_id(self) -> str:
        return CLIENT_ID

    def get_allowed_scope(self, scope: str | None) -> str:
        return " ".join(each for each in (scope or "").split() if each in {"read", "write"})

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == self.method

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "client_credentials"


class Grant(ClientCredentialsGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "client_secret_post")


class Request(OAuth2Request):  # type: ignore[misc]
    """A request as the form has it."""

    def __init__(self, uri: str, headers: Any, form: dict[str, str]) -> None:
        super().__init__("POST", uri, headers=headers)
        self.payload = BasicOAuth2Payload(form)

    @property
    def form(self) -> dict[str, str]:
        return dict(self.payload.data)


class Server(AuthorizationServer):  # type: ignore[misc]
    """Authlib's server, without any framework.

    Attributes:
        tokens: what was granted, with the scope of each.
        forms: what was asked.
    """

    def __init__(self, method: str) -> None:
        super().__init__(scopes_supported=["read", "write"])
        self.client = Client(method)
        self.tokens: dict[str, str] = {}
        self.forms: list[dict[str, str]] = []
        self.register_grant(Grant)
        self.register_token_generator(
            "default", BearerTokenGenerator(lambda **_: f"token-{len(self.tokens)}", expires_generator=lambda *_: 300)
        )

    def query_client(self, client_id: str) -> Client | None:
        return self.client if client_id == CLIENT_ID else None

    def save_token(self, token: dict[str, Any], request: Request) -> None:
        self.tokens[token["access_token"]] = token.get("scope", "")
        self.forms.append(request.form)

    def create_oauth2_request(self, request: Request) -> Request:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> tuple[int, Any]:
        return status, body

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Nobody listens."""


@contextmanager
def serving_oauth(method: str, tls: ssl.SSLContext) -> Iterator[tuple[Server, str]]:
    """Authlib's server at `/token`, and below it an API that wants one of its tokens; and the URL of both."""
    oauth = Server(method)

    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        status, document = 401, dict[str, Any](errors=[])
        if asked.method == "POST":
            form = {name: values[0] for name, values in parse_qs(asked.body.decode(), keep_blank_values=True).items()}
            request = Request(f"https://{asked.headers['host']}/token", asked.headers, form)
            status, document = oauth.create_token_response(request)
        elif asked.headers.get("authorization", "").removeprefix("Bearer ") in oauth.tokens:
            status, document = 200, {"data": {"id": asked.path.rpartition("/")[2], "status": "verified"}}
        return status, {}, json.dumps(document).encode()

    with http_server(answer, tls) as url:
        yield oauth, url


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ssl.SSLContext:
    """Return the server's certificate, which we trust."""
    authority, theirs = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    return theirs


@pytest.mark.parametrize("method", ["post", "basic"])
async def test_authlib_grants_a_token_to_either_way_of_proving_who_we_are(
    method: TokenAuth, theirs: ssl.SSLContext
) -> None:
    with serving_oauth(f"client_secret_{method}", theirs) as (server, url):
        auth = ClientCredentials(f"{url}/token", CLIENT_ID, SECRET, method=method, scope="read", audience="https://a")
        async with AsyncApi(url, auth) as api:
            assert (await api.presentations.get("p")).id == "p"
            assert (await asyncio.to_thread(SyncApi(api).presentations.get, "p")).id == "p"
        assert server.tokens == {"token-0": "read"}
        assert [(form["scope"], form["audience"]) for form in server.forms] == [("read", "https://a")]
