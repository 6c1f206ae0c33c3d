"""`Api` and `AsyncApi` in programs of their own, which know nothing of a worker, against the sandbox."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from credhook import Api, ApiError, AsyncApi, Unauthorized, UserRequest
from support.platform.scripted_server import PRESENTATION, TOKEN, answering, presentation
from support.platform.token_endpoint import TOKEN_URL
from support.platform.token_endpoint import Platform as ScriptedPlatform
from support.platform.transports import BOTH
from support.process.commands import invoke
from support.process.serving import Platform

NAMES = {
    *("certificates", "endpoints", "issuances", "presentations", "presets", "templates", "trusted_entities", "users"),
    *("wallet", "request", "from_env"),
}


def settings(url: str, token: str = TOKEN) -> dict[str, str]:
    return {
        "CREDHOOK_API_URL": url,
        "CREDHOOK_TOKEN_URL": url + token,
        "CREDHOOK_CLIENT_ID": "me",
        "CREDHOOK_CLIENT_SECRET": "s3cret",
    }


def run(program: str, environment: dict[str, str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a program in an empty folder, with nothing but these variables. A warning ends it."""
    kept = {"PATH": os.environ["PATH"], "HOME": str(folder)} | environment
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False, timeout=120)


SCRIPT = """
import os, sys, threading
from credhook import Api, UserRequest

api = Api.from_env()
existed = [api.users.create(UserRequest(username="ada")).existed]

def create():
    existed.append(api.users.create(UserRequest(username="ada")).existed)

threads = [threading.Thread(target=create) for _ in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
child = os.fork()
if not child:
    os._exit(0 if api.users.create(UserRequest(username="ada")).existed else 1)
print(existed == [False] + [True] * 20, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(api.users.list()))
"""


@pytest.mark.parametrize("carrier", BOTH)
def test_script_shares_a_client_with_its_threads_and_a_child(carrier: str, tmp_path: Path) -> None:
    with Platform(tmp_path) as sandbox:
        environment = sandbox.environment | {"CREDHOOK_HTTP_CLIENT": carrier}
        done = run(SCRIPT, environment, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("True 0 1\n", "", 0)


def test_application_requests_a_presentation_of_the_sandbox(tmp_path: Path) -> None:
    """As worker/README.md says: the platform's specification has no operation for it."""
    with Platform(tmp_path) as sandbox:
        program = """
from credhook import Api

with Api.from_env() as api:
    (event,) = api.request("POST", "/sandbox/events", {"eventType": "openid4vc.verification.requested"})["data"]
    print(event["resourceId"], api.presentations.get(event["resourceId"]).authorization_request_uri)
"""
        resource, link = run(program, sandbox.environment, tmp_path).stdout.split()
        assert link.startswith("openid4vp://")
        environment = {"CREDHOOK_SANDBOX_URL": sandbox.environment["CREDHOOK_API_URL"]}
        answered = invoke("trigger", "verification.data", "--resource", resource, environment=environment)
        assert answered.stdout.split()[:2] == ["openid4vc.verification.data", resource]


ASYNC_SCRIPT = """
import asyncio
from credhook import AsyncApi

async def main():
    async with AsyncApi.from_env() as api:
        print(len(await api.users.list()))
    try:
        await api.users.list()
    except RuntimeError as error:
        print(error)
    print(len(await AsyncApi.from_env().users.list()))  # It is never closed.

asyncio.run(main())
"""


@pytest.mark.parametrize("carrier", BOTH)
def test_async_client_closes_with_its_block_and_is_quiet_without(carrier: str, tmp_path: Path) -> None:
    with Platform(tmp_path) as sandbox:
        done = run(ASYNC_SCRIPT, sandbox.environment | {"CREDHOOK_HTTP_CLIENT": carrier}, tmp_path)
    closed = "users.list: the client is closed: call it inside its `with` block"
    assert (done.stdout.splitlines(), done.stderr) == (["0", closed, "0"], "")


def test_call_after_the_block_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda *_: presentation("p")) as server:
        for name, value in settings(server.url).items():
            monkeypatch.setenv(name, value)
        with Api.from_env() as api:
            assert api.presentations.get("p").id == "p"
        with pytest.raises(RuntimeError, match=r"^presentations\.get: the client is closed"):
            api.presentations.get("p")
        assert server.targets == [PRESENTATION + "p"]


def test_missing_and_wrong_variables_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (settings("ftp://x") | {"CREDHOOK_CLIENT_SECRET": ""}).items():
        monkeypatch.setenv(name, value)
    for client in (Api, AsyncApi):
        with pytest.raises(
            ValueError, match=r"\ACREDHOOK_API_URL: .*; CREDHOOK_CLIENT_SECRET: is not set.*\Z"
        ) as caught:
            client.from_env()
        assert "\n" not in str(caught.value)
        assert "ftp" not in str(caught.value)


async def calls_on_another_loop(carrier: str) -> list[object]:
    """Use a client on the running loop, then on another loop, and return both results."""
    api = AsyncApi.from_env()

    async def ask() -> object:
        try:
            return (await api.presentations.get("p")).id
        except RuntimeError as error:
            return str(error)

    here = await ask()
    there = await asyncio.to_thread(asyncio.run, ask())
    return [here, there, await ask()]


@pytest.mark.parametrize("carrier", BOTH)
async def test_async_client_on_another_loop_says_so_or_works(carrier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda *_: presentation("p")) as server:
        for name, value in (settings(server.url) | {"CREDHOOK_HTTP_CLIENT": carrier}).items():
            monkeypatch.setenv(name, value)
        refused = "AsyncApi belongs to another event loop: make one on each loop, or use Api"
        assert await calls_on_another_loop(carrier) == ["p", refused if carrier == "libcurl" else "p", "p"]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedPlatform:
    """Return a platform for httpx's mocks, at the URLs of the environment."""
    for name, value in (settings("https://api.example") | {"CREDHOOK_TOKEN_URL": TOKEN_URL}).items():
        monkeypatch.setenv(name, value)
    return ScriptedPlatform()


def test_client_of_httpx_carries_calls_and_stays_open(scripted: ScriptedPlatform) -> None:
    seen: list[str] = []
    hooks = {"request": [lambda request: seen.append(request.url.path)]}
    with httpx.Client(transport=httpx.MockTransport(scripted), event_hooks=hooks, auth=("not", "ours")) as http:
        with Api(http=http) as api:
            assert api.presentations.get("p").id == "p"
            scripted.revoke()
            assert api.presentations.get("p").id == "p"  # With a new token.
        assert not http.is_closed
    assert scripted.granted == 2
    assert seen.count(PRESENTATION + "p") == 3


async def test_asynchronous_client_of_httpx_carries_calls_and_stays_open(scripted: ScriptedPlatform) -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(scripted), follow_redirects=True) as http:
        async with AsyncApi(http=http) as api:
            assert (await api.presentations.get("p")).id == "p"
            scripted.refuse_tokens = lambda _: httpx.Response(401, json={"error": "invalid_client"})
            scripted.revoke()
            with pytest.raises(Unauthorized):
                await api.presentations.get("p")
        assert not http.is_closed


def test_another_kind_of_client_is_refused_by_name(scripted: ScriptedPlatform) -> None:
    with pytest.raises(TypeError, match=r"http should be an httpx\.AsyncClient or an httpx\.Client, not str"):
        Api(http="httpx")  # type: ignore[arg-type]


def test_completion_shows_what_authors_may_use(scripted: ScriptedPlatform) -> None:
    with Api.from_env() as api:
        assert {name for name in dir(api) if not name.startswith("_")} == NAMES
        assert "sender" not in dir(api.users)
    assert {name for name in dir(AsyncApi.from_env()) if not name.startswith("_")} == NAMES


@pytest.mark.parametrize("carrier", BOTH)
def test_threads_are_told_of_a_refusal_each(carrier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads meet the same refused credentials."""
    errors: list[ApiError] = []
    with answering(lambda *_: b"HTTP/1.1 401 X\r\nContent-Length: 0\r\n\r\n") as server:
        environment = settings(server.url, "/refused") | {"CREDHOOK_HTTP_CLIENT": carrier}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

        def create(api: Api) -> None:
            try:
                api.users.create(UserRequest(username="ada"))
            except ApiError as error:
                errors.append(error)

        with Api.from_env() as api:
            threads = [threading.Thread(target=create, args=(api,)) for _ in range(10)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert set(server.targets) == {"/refused"}
    assert [type(error) for error in errors] == [Unauthorized] * 10
