"""`credhook dev --to-platform`: a second sandbox is the platform, which trusts the authority of the author's tunnel."""

import signal
from pathlib import Path

import pytest
import trustme

from credhook.sandbox.local.environment import free_port
from support.platform.sandbox_api import registered
from support.platform.tunnel import tunnel
from support.process.dev_process import developing, nothing_is_left
from support.process.serving import Platform


@pytest.mark.usefixtures("swept")
def test_platform_delivers_to_the_author_during_the_session(
    folder: Path, sandbox: Platform, authority: trustme.CA
) -> None:
    port = free_port()
    with tunnel(authority.issue_cert("127.0.0.1"), port) as root:
        options = "accounts", "--to-platform", f"{root}/webhooks", "--port", str(port)
        settings = sandbox.environment | {"CREDHOOK_TLS_CERTFILE": "none.pem", "CREDHOOK_TLS_KEYFILE": "none.pem"}
        with developing(folder, *options, environ=settings) as dev:
            dev.ready(1)
            assert [one["url"] for one in registered(sandbox)] == [f"{root}/webhooks"]
            resource = sandbox.make()
            dev.shows(rf"issuance\.completed +{resource}  done  handlers=mine\.seen")
            assert "credhook trigger" not in dev.text
            dev.stop(signal.SIGTERM)
            assert dev.process.returncode == 0, dev.text
    assert registered(sandbox) == []
    assert nothing_is_left(folder)
