"""Tokens of a server that goes by code of others: Authlib says whether we have proved who we are."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
from authlib.oauth2.rfc6749 import ClientAuthentication, InvalidClientError

from credhook.worker.api.token import ClientCredentials, TokenAuth
from support.in_thread import Asked, http_server
from support.platform.transports import api_over, for_threads

CLIENT_ID, SECRET = "me:the worker", "p%41+ /~:"


@contextmanager
def serving_oauth(method: str) -> Iterator[tuple[list[dict[str, str]], str]]:
    """A token endpoint at `/token`, and below it an API that wants its token. Yield what was granted, and the URL."""
    granted: list[dict[str, str]] = []
    client = SimpleNamespace(
        check_client_secret=lambda secret: secret == SECRET,
        check_endpoint_auth_method=lambda proved_by, _: proved_by == method,
    )
    authentication = ClientAuthentication({CLIENT_ID: client}.get)

    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes]:
        status, document = 401, dict[str, object](errors=[])
        if asked.method == "POST":
            form = {name: values[0] for name, values in parse_qs(asked.body.decode(), keep_blank_values=True).items()}
            request = SimpleNamespace(headers=asked.headers, form=form)
            with suppress(InvalidClientError):
                authentication(request, ["client_secret_basic", "client_secret_post"])
                granted.append(form)
                status, document = 200, {"access_token": "t", "token_type": "Bearer", "expires_in": 300}
        elif asked.headers.get("authorization") == "Bearer t":
            status, document = 200, {"data": {"id": asked.path.rpartition("/")[2], "status": "verified"}}
        return status, {}, json.dumps(document).encode()

    with http_server(answer) as url:
        yield granted, url


@pytest.mark.parametrize("method", ["post", "basic"])
async def test_authlib_grants_a_token_to_either_way_of_proving_who_we_are(method: TokenAuth) -> None:
    with serving_oauth(f"client_secret_{method}") as (granted, url):
        auth = ClientCredentials(f"{url}/token", CLIENT_ID, SECRET, method=method, scope="read", audience="https://a")
        async with api_over("libcurl", url, auth) as api:
            assert (await api.presentations.get("p")).id == "p"
            assert (await asyncio.to_thread(for_threads(api).presentations.get, "p")).id == "p"
        (form,) = granted
    assert (form["grant_type"], form["scope"], form["audience"]) == ("client_credentials", "read", "https://a")
