"""deploy/, as far as it can be checked without a container engine, with its alerts, their runbook and the dashboard."""

import json
import re
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Context

from credhook.cli import LazyGroup
from credhook.ops import findings
from credhook.ops.fleet import REFUSING
from credhook.receiver import command as receiver
from credhook.settings import EndpointSettings, ReceiverSettings, WorkerSettings
from credhook.worker.process import supervisor
from support.checkout import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
STATE = "/var/lib/credhook"
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_compose_names_no_missing_file() -> None:
    for service in SERVICES.values():
        named = [volume.split(":")[0] for volume in service.get("volumes", ())] + [service.get("env_file", "")]
        for name in (one for one in named if one.startswith(".") or one.endswith(".env")):
            wanted = name + ".example" if name.endswith(".env") else name
            assert Path(name).name == "tls" or (DEPLOY / wanted).exists(), name  # The operator's certificate.
    build = SERVICES["receiver"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_can_do_more_than_it_must(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert (service["read_only"], service["restart"]) == (True, "no" if name == "endpoints" else "unless-stopped")
    assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices"}
    writable = [volume for volume in service.get("volumes", ()) if not volume.endswith(":ro")]
    volumes = {"redis": ["redis-data:/data"], "worker": [f"worker-state:{STATE}"]}
    assert writable == volumes.get(name, [])
    assert service.get("environment", {}).get("STATE_DIRECTORY") == (STATE if name == "worker" else None)


def test_image_gives_handlers_a_folder_that_its_user_owns() -> None:
    assert f"install -d -o credhook {STATE}" in (DEPLOY / "Dockerfile").read_text()


def reached_from(name: str) -> set[str]:
    """The services that share a network with it."""
    ours = set(SERVICES[name]["networks"])
    return {other for other, service in SERVICES.items() if other != name and ours & set(service["networks"])}


def test_compose_services_reach_and_wait_for_each_other() -> None:
    assert reached_from("proxy") == {"receiver"}
    assert reached_from("redis") == {"receiver", "worker"}
    internal = {name for name, network in COMPOSE["networks"].items() if (network or {}).get("internal")}
    ways_out = {name: set(service["networks"]) - internal for name, service in SERVICES.items()}
    assert {name for name, ways in ways_out.items() if ways} == {"proxy", "worker", "endpoints"}
    assert not ways_out["proxy"] & (ways_out["worker"] | ways_out["endpoints"])
    assert [name for name, service in SERVICES.items() if service.get("ports")] == ["proxy"]

    waits = [wait for service in SERVICES.values() for wait in service.get("depends_on", {}).items()]
    assert all("healthcheck" in SERVICES[name] for name, wait in waits if wait["condition"] == "service_healthy")
    host, port = SERVICES["proxy"]["environment"]["RECEIVER"].split(":")
    assert SERVICES[host]["environment"]["PORT"] == port
    assert SERVICES["proxy"]["environment"]["RESOLVER"] == "127.0.0.11:53"
    assert "container_name" not in SERVICES["receiver"]  # It could not be there twice.


def test_the_password_of_redis_is_in_no_file_of_ours() -> None:
    asked_for = r"\$\{REDIS_PASSWORD:\?[^}]+\}"
    for name in ("receiver", "worker"):
        assert re.fullmatch(rf"redis://credhook:{asked_for}@redis:6379/0", SERVICES[name]["environment"]["REDIS_URL"])
    assert re.fullmatch(asked_for, SERVICES["redis"]["environment"]["REDIS_PASSWORD"])
    assert re.search(r"^REDIS_PASSWORD=$", (DEPLOY / "compose.env.example").read_text(), re.MULTILINE)
    assert "deploy/*.env\n" in (ROOT / ".gitignore").read_text()


@pytest.mark.parametrize("service", ["receiver", "worker"])
def test_compose_runs_commands_that_exist_with_room_to_drain(service: str) -> None:
    program, command = SERVICES[service]["command"]
    assert program == "credhook"
    assert LazyGroup().get_command(Context(LazyGroup()), command)
    grace = WorkerSettings.model_fields["grace"].default + supervisor.EXTRA_GRACE_SECONDS
    seconds = grace if service == "worker" else 2 * receiver.GRACE_SECONDS
    assert int(SERVICES[service]["stop_grace_period"].removesuffix("s")) > seconds


def variables(path: Path) -> set[str]:
    return set(re.findall(r"^([A-Z_]+)=", path.read_text(), re.MULTILINE))


def test_example_environments_hold_only_existing_settings() -> None:
    def known(*models: Any) -> set[str]:
        return {field.validation_alias for model in models for field in model.model_fields.values()}

    assert variables(DEPLOY / "receiver.env.example") <= known(ReceiverSettings)
    assert variables(DEPLOY / "worker.env.example") <= known(WorkerSettings, EndpointSettings)
    required = {f.validation_alias for f in WorkerSettings.model_fields.values() if f.is_required()}
    assert required <= variables(DEPLOY / "worker.env.example")


def test_dockerfile_copies_existing_files_and_sets_no_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    assert "USER credhook" in text
    assert " HOST=0.0.0.0 PORT=8000\n" in text
    assert text.count("--require-hashes") == 2
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    (package,) = packaged["packages"]
    linked = [link.name for link in (ROOT / package).iterdir() if link.is_symlink()]
    assert linked
    assert "\nCOPY . .\n" in text
    assert not {package, *linked, "deploy"} & set((ROOT / ".dockerignore").read_text().split())


@pytest.mark.parametrize("name", ["credhook-backfill.service", "kubernetes/backfill.yaml"])
def test_daily_backfill_looks_back_further_than_a_day(name: str) -> None:
    (typed,) = re.findall(r"(?:ExecStart=\S+/|command: \[)(credhook.*?)\]?$", (DEPLOY / name).read_text(), re.MULTILINE)
    _, command, *arguments = typed.replace(",", "").split()
    events: Any = LazyGroup().get_command(Context(LazyGroup()), command)
    parsed = events.get_command(Context(events), arguments[0]).make_context("backfill", arguments[1:])
    assert datetime.now(UTC) - parsed.params["since"] > timedelta(days=1, hours=23)


def locked(name: str) -> set[str]:
    return set(re.findall(r"^[a-z0-9][\w.\[\]-]*==\S+", (DEPLOY / name).read_text(), re.MULTILINE))


@pytest.mark.parametrize("lock", sorted(DEPLOY.glob("requirements*.txt")), ids=lambda path: path.name)
def test_locks_carry_hashes_and_no_hosts(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert "--index" not in text
    pinned = re.findall(r"^\S*==.*$", text, re.MULTILINE)
    assert len(pinned) == len(locked(lock.name)) > 40
    assert all(line.endswith("\\") for line in pinned)


def test_each_lock_holds_what_it_is_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = {
        "requirements.txt": [*project["project"]["dependencies"], *extras["otel"]],
        "requirements-local.txt": [*extras["local"], *extras["testing"], *project["dependency-groups"]["local"]],
        "requirements-dev.txt": [each for each in project["dependency-groups"]["dev"] if isinstance(each, str)],
    }
    assert {path.name for path in DEPLOY.glob("requirements*.txt")} == wanted.keys()
    for lock, requirements in wanted.items():
        assert {re.split(r"[\[<>=]", each)[0] for each in requirements} <= {pin.split("==")[0] for pin in locked(lock)}
        assert locked(lock) <= locked("requirements-dev.txt")  # The tests run with these versions.


def test_the_collector_takes_traces_and_scrapes_metrics() -> None:
    collector = yaml.safe_load((DEPLOY / "otel-collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= collector[kind].keys()
    assert collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"] == "0.0.0.0:4318"
    (job,) = collector["receivers"]["prometheus"]["config"]["scrape_configs"]
    admins = {f"{name}:{SERVICES[name]['environment']['CREDHOOK_ADMIN'][8:]}" for name in ("receiver", "worker")}
    assert {target for one in job["static_configs"] for target in one["targets"]} == admins


RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text()
(GROUP,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in GROUP["rules"]}
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

#: Each metric and its labels, by deploy/METRICS.md, which is held to the code elsewhere.
ROWS = re.findall(r"^\| `(credhook_\w+)` \| (\w+) \| (.*?) \|", (DEPLOY / "METRICS.md").read_text(), re.MULTILINE)
#: The labels of each series: Prometheus adds the first three, and each target its queue.
OF_EACH = {"job", "instance", "le", "queue"}
#: Each series with its labels.
KNOWN = {
    name + suffix: set(re.findall(r"`(\w+)`", labels)) | OF_EACH
    for name, kind, labels in ROWS
    for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
}

EXPRESSIONS = [(name, rule["expr"]) for name, rule in ALERTS.items()] + [
    (panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]
]


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_expression_is_made_of_series_and_labels_that_exist(where: str, expression: str) -> None:
    named = set(re.findall(r"\bcredhook_\w+", expression))
    assert named, where
    assert named <= set(KNOWN)
    for name, matchers in re.findall(r"\b(credhook_\w+)\{(.*?)\}", expression):
        assert set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', matchers)) <= KNOWN[name]
    grouped = {label for by in re.findall(r"\bby \(([^)]*)\)", expression) for label in re.findall(r"\w+", by)}
    assert grouped <= set().union(*(KNOWN[name] for name in named))


def test_alerts_and_dashboard_use_every_metric() -> None:
    used = {name for _, expression in EXPRESSIONS for name in re.findall(r"\bcredhook_\w+", expression)}
    used |= set(re.findall(r"\bcredhook_\w+", json.dumps(DASHBOARD["templating"])))
    assert re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE) == list(ALERTS)
    metrics = {name for name, _, _ in ROWS}
    assert metrics <= {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    assert set(re.findall(r"`(credhook_\w+)", RUNBOOK)) <= metrics | set(KNOWN)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_leads_to_its_entry_in_the_runbook(name: str) -> None:
    annotations, labels = ALERTS[name]["annotations"], ALERTS[name]["labels"]
    assert annotations["runbook_url"] == f"RUNBOOK.md#{name.lower()}"
    assert labels["severity"] in {"page", "ticket"}
    assert f"\n## {name}\n" in RUNBOOK


#: Alerts about what status shows as `redis.*`, and doctor as `certificate.*`.
OTHERWISE_SHOWN = {"CredhookRedisDown", "CredhookRedisUnsafe", "CredhookRedisMemory", "CredhookCertificateExpires"}
#: Alerts about what status shows of the checks from outside.
OUTSIDE = {"CredhookUnreachable", "CredhookNotRegistered", "CredhookPublicCertificateExpires"}
#: Alerts about figures that only Prometheus and the process have.
UNSHOWN = {"CredhookQueueGrows", "CredhookHandlersHung", "CredhookNotReady", "CredhookNotScraped", "CredhookTargetDown"}


def test_each_alert_is_about_a_finding_that_status_shows() -> None:
    shown = [row.alert for row in findings.ROWS if row.alert]
    assert sorted([*shown, *OTHERWISE_SHOWN, *OUTSIDE, *UNSHOWN]) == sorted(ALERTS)


@pytest.mark.parametrize("name", ["CredhookNoWorker", "CredhookNoReceiver"])
def test_alert_and_status_wait_for_the_same_checks(name: str) -> None:
    assert '{check=~"' + "|".join(REFUSING) + '"}' in ALERTS[name]["expr"]


def test_every_alert_has_a_case_that_fires_and_a_quiet_one() -> None:
    tests = yaml.safe_load((ROOT / "tests" / "alerts" / "alerts.yaml").read_text())["tests"]
    fires = {one["alertname"]: bool(one.get("exp_alerts")) for test in tests[1:] for one in test["alert_rule_test"]}
    assert fires == dict.fromkeys(ALERTS, True)
    quiet = {one["alertname"]: bool(one.get("exp_alerts")) for one in tests[0]["alert_rule_test"]}
    assert quiet == dict.fromkeys(ALERTS, False)
