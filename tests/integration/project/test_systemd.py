"""The units of deploy/: systemd's verdict on them, and their command lines, run with environment and credentials."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import httpx
import pytest

from credhook.receiver import command
from credhook.sandbox.local.environment import free_port
from credhook.settings import WorkerSettings
from credhook.worker.process import supervisor
from support import plain
from support.checkout import ROOT
from support.process.serving import Process
from support.receiver.signing import SECRET
from support.waiting import until
from support.worker.harness import PLAIN, Harness

DEPLOY = ROOT / "deploy"
SERVICES = sorted(path.name for path in DEPLOY.glob("*.service"))
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")


def unit(name: str) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = defaultdict(list)
    for key, value in re.findall(r"^(\w+)=(.*)$", (DEPLOY / name).read_text(), re.MULTILINE):
        lines[key].append(value)
    return lines


def answer(url: str) -> int:
    """Return the status of the answer, or 0 if nothing listens."""
    try:
        return plain.get(url).status_code
    except httpx.TransportError:
        return 0


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60)


@needs_systemd
def test_systemd_reads_every_unit_and_finds_the_services_locked_up(tmp_path: Path) -> None:
    for one in DEPLOY.glob("credhook-*"):
        text = one.read_text().replace("/opt/credhook/bin/credhook", shutil.which("true") or "")
        (tmp_path / one.name.replace("@.", "@1.")).write_text(text)
    done = analyze("verify", *map(str, tmp_path.iterdir()))
    assert (done.returncode, done.stderr) == (0, "")
    for service in tmp_path.glob("*.service"):
        done = analyze("security", "--offline=true", "--threshold=20", "--json=short", str(service))  # 2.0 of 10.
        assert done.returncode == 0, [one["name"] for one in json.loads(done.stdout) if one["set"] is False]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_with_its_environment_and_credentials(harness: Harness, tmp_path: Path, name: str) -> None:
    harness.plugin(PLAIN)
    service, admin = unit(name), free_port()
    values = {**harness.environment, "CREDHOOK_WEBHOOK_SECRETS": SECRET, "CREDHOOK_CONSOLE_PASSWORD": 32 * "p"}
    credentials = [one.partition(":") for one in service["LoadCredential"]]
    assert all(path.startswith("/etc/credhook/") and Path(path).name == key for key, _, path in credentials)
    for key, _, _ in credentials:
        (tmp_path / "credentials").mkdir(exist_ok=True)
        (tmp_path / "credentials" / key).write_text(f"{values.pop(key)}\n")
    # worker.env holds what remains, without a secret. receiver.env may be missing.
    files = {"-/etc/credhook/receiver.env": {"PORT": str(free_port())}, "/etc/credhook/worker.env": values}
    files["-/etc/credhook/console.env"] = {}
    environment = dict(
        one.replace("910%i", str(admin)).replace("911%i", str(admin)).split("=", 1) for one in service["Environment"]
    )
    for file in service["EnvironmentFile"]:
        environment |= files[file]
    ((program, *arguments),) = (line.replace("8060", str(admin)).split() for line in service["ExecStart"])
    assert program == "/opt/credhook/bin/credhook"
    environment["CREDENTIALS_DIRECTORY"] = str(tmp_path / "credentials")
    assert not {"REDIS_URL", "CREDHOOK_CLIENT_SECRET"} & environment.keys()
    with Process(tmp_path / "service.log", "-m", "credhook", *arguments, environment=environment) as process:
        if service["Type"] != ["oneshot"]:
            path, status = ("/", 401) if name == "credhook-console.service" else ("/readyz", 200)
            until(lambda: answer(f"http://127.0.0.1:{admin}{path}") == status, what=path)
            assert process.stop() == 0
        assert process.process.wait(60) == 0, process.text


def test_units_give_services_their_settings_and_time_to_drain() -> None:
    both = receiver, worker = unit("credhook-receiver@.service"), unit("credhook-worker@.service")
    grace = WorkerSettings.model_fields["grace"].default + supervisor.EXTRA_GRACE_SECONDS
    assert float(worker["TimeoutStopSec"][0]) > grace
    assert float(receiver["TimeoutStopSec"][0]) > 2 * command.GRACE_SECONDS
    assert [one["Restart"] + one["RestartPreventExitStatus"] for one in both] == [["always", "2"]] * 2
    assert len({line for one in both for line in one["Environment"]}) == 2
    # All workers of a host share the folder of their handlers, so they are one user.
    assert [worker[name] for name in ("DynamicUser", "User", "StateDirectory")] == [
        ["yes"], ["credhook-worker"], ["credhook-worker"],
    ]  # fmt: skip
    socket = unit("credhook-receiver.socket")
    assert (socket["Service"], len(socket["ListenStream"])) == (["credhook-receiver@1.service"], 1)
    assert socket["ListenStream"][0].startswith("127.0.0.1:")  # It speaks plain HTTP, unless TLS is set.
    assert not any("TLS" in line for line in receiver["Environment"])
    assert receiver["ExecReload"] == ["kill -HUP $MAINPID"]
    assert receiver["Sockets"] == ["credhook-receiver.socket"]
    assert "REDIS_URL:/etc/credhook/operator/REDIS_URL" in unit("credhook-backfill.service")["LoadCredential"]
    timer = unit("credhook-backfill.timer")
    expected = {"OnCalendar": "daily", "Persistent": "yes", "WantedBy": "timers.target", "Unit": None}
    assert {name: next(iter(timer[name]), None) for name in expected} == expected
