"""`credhook dev --to-platform`: a second sandbox is the platform, which trusts the authority of the author's tunnel."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from commands import credhook
from dev_process import developing, nothing_is_left
from sandbox_api import CREDS, authorized
from serving import Platform
from tunnel import tunnel

from credhook.sandbox.local.environment import free_port


def urls(platform: Platform) -> list[str]:
    with authorized(platform) as api:
        return [endpoint["url"] for endpoint in api.get(f"{CREDS}/endpoints").json()]


@pytest.fixture
def arguments(authority: trustme.CA) -> Iterator[tuple[str, ...]]:
    """The command line of a session behind a tunnel. The tunnel's URL is the third argument."""
    port = free_port()
    with tunnel(authority.issue_cert("127.0.0.1"), port) as url:
        yield "accounts", "--to-platform", f"{url}/webhooks", "--port", str(port)


@pytest.mark.usefixtures("swept")
def test_the_platform_delivers_to_the_author_for_as_long_as_the_session_lasts(
    folder: Path, sandbox: Platform, arguments: tuple[str, ...]
) -> None:
    with developing(folder, *arguments, environ=sandbox.environment) as dev:
        dev.ready(1)
        assert urls(sandbox) == [arguments[2]]
        resource = sandbox.make()
        dev.shows(rf"issuance\.completed +{resource}  done  handlers=mine\.seen")
        assert "credhook trigger" not in dev.text
        dev.stop(signal.SIGTERM)
        assert dev.process.returncode == 0, dev.text
    assert urls(sandbox) == []
    assert nothing_is_left(folder)


@pytest.mark.usefixtures("swept")
def test_what_somebody_has_registered_is_refused_and_left_alone(
    folder: Path, sandbox: Platform, arguments: tuple[str, ...]
) -> None:
    environment = sandbox.environment | {"CREDHOOK_PUBLIC_URL": arguments[2]}
    assert credhook("endpoints", "apply", environment=environment, folder=folder).returncode == 0
    with developing(folder, *arguments, environ=sandbox.environment) as dev:
        assert dev.process.wait(90) == 1
        assert "delivers to this URL already: `credhook endpoints delete " in dev.text
    assert urls(sandbox) == [arguments[2]]


def test_a_platform_that_is_not_there_is_one_line(folder: Path, sandbox: Platform) -> None:
    nowhere = {"CREDHOOK_API_URL": "http://127.0.0.1:1", "CREDHOOK_TOKEN_URL": "http://127.0.0.1:1/token"}
    arguments = "accounts", "--to-platform", "https://localhost/webhooks", "--port", str(free_port())
    with developing(folder, *arguments, environ=sandbox.environment | nowhere) as dev:
        assert dev.process.wait(90) == 1
        assert dev.text.count("\n") == 1
    assert nothing_is_left(folder)
