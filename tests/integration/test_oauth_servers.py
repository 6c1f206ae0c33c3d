"""Tokens of servers that others have written: Authlib's, in this process, and npm's oidc-provider, in its own.

The latter wants node, and `npm install oidc-provider` in a folder that CREDHOOK_OIDC_PROVIDER names; without that it is
installed into a temporary one, by the soak.
"""

import asyncio
import base64
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import trustme
from oauth_server import CLIENT_ID, SECRET, serving_oauth

from credhook.worker.api.client import AsyncApi, SyncApi
from credhook.worker.api.errors import Unauthorized
from credhook.worker.api.http.exchange import Request, Response
from credhook.worker.api.http.transport import PyreqwestTransport
from credhook.worker.api.token import ClientCredentials, TokenAuth

ROOT = Path(__file__).parents[2]
RESOURCE = "https://api.example/me-creds"


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


@pytest.mark.parametrize(("wrong", "registered"), [("post", "basic"), ("basic", "post")])
async def test_authlib_refuses_the_other_way_and_the_message_names_the_setting(
    wrong: TokenAuth, registered: str, theirs: ssl.SSLContext
) -> None:
    with serving_oauth(f"client_secret_{registered}", theirs) as (_, url):
        auth = ClientCredentials(f"{url}/token", CLIENT_ID, SECRET, method=wrong)
        async with AsyncApi(url, auth) as api:
            with pytest.raises(Unauthorized, match=r"\(invalid_client\).*CREDHOOK_TOKEN_AUTH"):
                await api.presentations.get("p")


async def test_authlib_refuses_a_scope_and_the_message_names_the_setting(
    theirs: ssl.SSLContext,
) -> None:
    with serving_oauth("client_secret_post", theirs) as (_, url):
        auth = ClientCredentials(f"{url}/token", CLIENT_ID, SECRET, scope="everything")
        async with AsyncApi(url, auth) as api:
            with pytest.raises(Unauthorized, match=r"\(invalid_scope\); check CREDHOOK_SCOPE$"):
                await api.presentations.get("p")


# npm's oidc-provider.


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which oidc-provider is installed."""
    if given := os.environ.get("CREDHOOK_OIDC_PROVIDER"):
        return Path(given)
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("npm")
    done = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "oidc-provider@9"], cwd=folder, check=False)
    if done.returncode:
        pytest.skip("npm cannot install oidc-provider here")
    return folder


def provider(packages: Path, method: str) -> Iterator[str]:
    script = packages / "provider.mjs"
    shutil.copy(ROOT / "tests" / "support" / "oidc_provider.mjs", script)
    process = subprocess.Popen(
        ["node", script.name, method, RESOURCE],
        cwd=packages,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def issuer(packages: Path, method: str) -> Iterator[str]:
    yield from provider(packages, f"client_secret_{method}")


class Split(PyreqwestTransport):
    """Token requests to the network, all others to an API that answers in this process.

    Attributes:
        token: what the last request to the API was sent with.
    """

    token = ""

    async def send(self, request: Request) -> Response:
        if request.method == "POST":
            return await super().send(request)
        self.token = request.headers["Authorization"].removeprefix("Bearer ")
        return Response(200, {}, b'{"data": {"id": "p", "status": "verified"}}')


async def authorised(auth: ClientCredentials) -> str:
    """The token that a request gets."""
    transport = Split(5.0)
    async with aclosing(transport):
        await AsyncApi("http://api.example", auth, transport=transport).presentations.get("p")
    return transport.token


@pytest.mark.soak
@pytest.mark.parametrize("method", ["post", "basic"])
async def test_oidc_provider_grants_a_token_for_a_resource_and_a_scope(method: TokenAuth, issuer: str) -> None:
    plain = await authorised(ClientCredentials(f"{issuer}/token", CLIENT_ID, SECRET, method=method, scope="read"))
    assert plain.count(".") == 0  # Opaque, since it is for nobody in particular.
    auth = ClientCredentials(f"{issuer}/token", CLIENT_ID, SECRET, method=method, scope="read", resources=(RESOURCE,))
    _, claims, _ = (await authorised(auth)).split(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=="))
    assert (told["aud"], told["scope"], told["client_id"]) == (RESOURCE, "read", CLIENT_ID)


@pytest.mark.soak
@pytest.mark.parametrize("method", ["basic"])
async def test_oidc_provider_refuses_and_the_message_names_the_setting(method: TokenAuth, issuer: str) -> None:
    refused = {
        "CREDHOOK_TOKEN_AUTH": ClientCredentials(f"{issuer}/token", CLIENT_ID, "wrong", method=method),
        "CREDHOOK_SCOPE": ClientCredentials(f"{issuer}/token", CLIENT_ID, SECRET, method=method, scope="openid"),
        "CREDHOOK_RESOURCE": ClientCredentials(
            f"{issuer}/token", CLIENT_ID, SECRET, method=method, resources=("not-absolute",)
        ),
    }
    for setting, auth in refused.items():
        with pytest.raises(Unauthorized, match=setting):
            await authorised(auth)
