"""`credhook sandbox` and `credhook trigger` from the command line."""

import os
import shlex
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from support import plain
from support.platform.sandbox_api import CREDS, authorized, data
from support.process.commands import invoke, start
from support.process.serving import Platform, Process, platform

trigger = partial(invoke, "trigger", environment=os.environ)
PRINTED = [
    "CREDHOOK_API_URL=http://127.0.0.1:8711",
    "CREDHOOK_TOKEN_URL=http://127.0.0.1:8711/realms/sandbox/protocol/openid-connect/token",
    "CREDHOOK_CLIENT_ID=sandbox",
    "CREDHOOK_CLIENT_SECRET=sandbox",
]
SECRET = "whsec_c2FuZGJveC1vbmx5LXB1Ymxpc2hlZC1ieS1jcmVkaG9vaw=="
PRIVATE = "whsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
PUBLIC = "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="


@pytest.mark.parametrize(
    ("options", "secrets"),
    [
        ([], [f"CREDHOOK_WEBHOOK_SECRETS={SECRET}"]),
        (["--unsigned"], []),
        (["--unsigned", "--host", "::1"], []),
        (["--signing-secret", PRIVATE, "--signing-secret", SECRET], [f"CREDHOOK_WEBHOOK_SECRETS='{PUBLIC} {SECRET}'"]),
        (["--signing-secret", PRIVATE], [f"CREDHOOK_WEBHOOK_SECRETS={PUBLIC}"]),
    ],
)
def test_env_prints_the_settings_and_ends(options: list[str], secrets: list[str]) -> None:
    printed = invoke("sandbox", "--env", "--port", "8711", *options, environment={})
    assert (printed.returncode, printed.stderr) == (0, "")
    host = "[::1]" if "::1" in options else "127.0.0.1"
    assert printed.stdout.splitlines() == [line.replace("127.0.0.1", host) for line in PRINTED] + secrets


@pytest.mark.parametrize(("number", "host"), [(signal.SIGTERM, "::1"), (signal.SIGINT, "0.0.0.0")])
def test_a_free_port_is_printed_first_and_a_signal_ends_it_well(number: signal.Signals, host: str) -> None:
    process = start(
        ["-m", "credhook.sandbox", "--port", "0", "--host", host, "--allowed-host", "sandbox.test"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("CREDHOOK_API_URL=")
        for headers in ({}, {"host": "sandbox.test"}):
            assert plain.get(f"{url}/sandbox/deliveries", headers=headers).status_code == 200
        process.send_signal(number)
        assert process.wait(60) == 0
    finally:
        process.kill()
        _, errors = process.communicate()
    assert "Traceback" not in errors
    assert (f"Warning: {host} can be reached from other machines" in errors) == (host == "0.0.0.0")


def test_an_address_or_a_file_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    state, other, ca = tmp_path / "state.db", tmp_path / "other.db", tmp_path / "ca.pem"
    other.write_text("this is no database\n" * 200)
    ca.write_text("nonsense")
    with platform(tmp_path, "--state", str(state)) as sandbox:
        port = sandbox.url.rpartition(":")[2]
        for option, value, reason in (
            ("--port", port, "in use"),
            ("--state", str(state), "database is locked"),
            ("--state", str(other), "not a database"),
            ("--state", str(tmp_path / "nowhere" / "state.db"), "unable to open"),
            ("--ca", str(ca), "cannot be read"),
        ):
            command = ("-m", "credhook.sandbox", "--port", "0", option, value)
            refused = Process(tmp_path / f"{reason}.log", *command, environment={})
            assert refused.process.wait(60) == 1
            (line,) = refused.text.splitlines()
            assert value in line
            assert reason in line


SANDBOX = ("sandbox", "--port", "0")
OFFER = ("trigger", "issuance.offered")


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        ((*SANDBOX, "--signing-secret", "secretword"), "should be whsec_ with", 2),
        ((*SANDBOX, "--unsigned", "--signing-secret", SECRET), "exclude each other", 2),
        ((*SANDBOX, "--duplicate", "0"), "--duplicate: Input", 2),
        ((*SANDBOX, "--envelopes", "none"), "--envelopes: Input", 2),
        ((*SANDBOX, "--time-scale", "-1"), "--time-scale", 2),
        ((*OFFER, "--attributes", "givenName"), "neither KEY=VALUE", 2),
        ((*OFFER, "--attributes", "=x"), "neither KEY=VALUE", 2),
        ((*OFFER, "--attributes", "[1]"), "neither KEY=VALUE", 2),
        (("trigger", "issuance.done"), "issuance.partiallyIssued, issuance.expired", 2),
        ((*OFFER, "--url", "http://127.0.0.1:1"), "start one with `credhook sandbox`", 1),
        ((*OFFER, "--url", "nonsense"), "start one with `credhook sandbox`", 1),
    ],
)
def test_a_wrong_option_or_url_is_named(arguments: tuple[str, ...], said: str, code: int) -> None:
    refused = invoke(*arguments, environment=os.environ)
    assert refused.returncode == code
    assert said in refused.stderr
    assert "secretword" not in refused.stderr
    assert code == 2 or refused.stderr.strip().count("\n") == 0


def test_a_trigger_makes_events_and_moves_an_existing_resource(
    sandbox: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDHOOK_SANDBOX_URL", sandbox.url)
    lines = trigger("issuance.offered", "--count", "3").stdout.splitlines()
    ids = [line.split()[1] for line in lines]
    assert lines == [f"openid4vc.issuance.offered  {id_}  no endpoint is registered for it" for id_ in ids]
    assert len(set(ids)) == 3
    assert ids[0] in trigger("openid4vc.issuance.expired", "--resource", ids[0]).stdout
    again = trigger("issuance.completed", "--resource", ids[0], "--url", f"{sandbox.url}/")
    assert (again.returncode, again.stdout) == (1, "")
    assert "cannot follow the status expired" in again.stderr


@pytest.mark.parametrize(
    ("options", "attributes", "valid"),
    [
        ("givenName=Grace --attributes note=a=b --attributes givenName=Ida", {"givenName": "Ida", "note": "a=b"}, True),
        ("""'{"n": ["=", null], "age": 1}' --attributes age=2 --no-is-valid""", {"n": ["=", None], "age": "2"}, False),
    ],
)
def test_a_trigger_sets_the_presented_credential(
    sandbox: Platform, options: str, attributes: dict[str, object], valid: bool
) -> None:
    made = trigger("verification.data", "--url", sandbox.url, "--attributes", *shlex.split(options))
    assert made.returncode == 0, made.stderr
    with authorized(sandbox) as api:
        (credential,) = data(api.get(f"{CREDS}/presentations/{made.stdout.split()[1]}"))["credentials"]
    assert (credential["attributes"], credential["isValid"]) == (attributes, valid)
    assert bool(credential["issues"]) == (not valid)
