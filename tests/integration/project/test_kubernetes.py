"""deploy/kubernetes: what kustomize makes of it, and each container's command and probes, run here as processes."""

import re
import shutil
import signal
import subprocess
from collections import defaultdict
from typing import Any

import httpx
import pytest
import yaml

from credhook.receiver import command
from credhook.sandbox.local.environment import free_port
from credhook.worker.process import supervisor
from support import plain
from support.checkout import ROOT
from support.process.scraping import Scrape
from support.process.serving import Process
from support.receiver.signing import SECRET
from support.waiting import until
from support.worker.harness import HELD, Harness

FOLDER = ROOT / "deploy" / "kubernetes"
pytestmark = pytest.mark.skipif(not shutil.which("kubectl"), reason="needs kubectl (Debian's is too old)")

RECEIVER, WORKER = "Deployment/credhook-receiver", "Deployment/credhook-worker"
JOB, CRON_JOB = "Job/credhook-endpoints", "CronJob/credhook-backfill"
CONSOLE = "Deployment/credhook-console"
PODS = [RECEIVER, WORKER, JOB, CRON_JOB, CONSOLE]

PUBLIC_URL = "https://inbox.example/webhooks"
#: What each Secret holds, as kustomization.yaml says.
SECRETS = {
    "credhook-receiver": ["REDIS_URL", "CREDHOOK_WEBHOOK_SECRETS"],
    "credhook-worker": ["REDIS_URL", "CREDHOOK_CLIENT_SECRET"],
    "credhook-endpoints": ["CREDHOOK_PUBLIC_URL"],
    "credhook-operator": ["REDIS_URL"],
    "credhook-console": ["CREDHOOK_CONSOLE_PASSWORD"],
}

#: Blocks the loop in each process that takes the event.
BLOCKING = """
@handlers.on("*")
async def blocks(event, context):
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def objects() -> dict[str, dict[str, Any]]:
    made = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=True, timeout=60)
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in yaml.safe_load_all(made.stdout)}


def template_of(objects: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    spec = objects[name]["spec"]
    template: dict[str, Any] = spec.get("jobTemplate", {"spec": spec})["spec"]["template"]
    return template


def config_of(objects: dict[str, dict[str, Any]], container: dict[str, Any]) -> dict[str, str]:
    """Return the environment that the container is given."""
    maps = [objects[f"ConfigMap/{one['configMapRef']['name']}"]["data"] for one in container.get("envFrom", ())]
    named = {one["name"]: one["value"] for one in container["env"]}
    return {name: value for one in (*maps, named) for name, value in one.items()}


class Container(Process):
    """A pod's only container as a process: with its environment, probes and secrets, on ports that are free here."""

    def __init__(self, harness: Harness, objects: dict[str, dict[str, Any]], name: str, **replaced: str) -> None:
        self.pod = template_of(objects, name)["spec"]
        (self.spec,) = self.pod["containers"]
        self.ports = {port["name"]: free_port() for port in self.spec.get("ports", ())}
        environment = config_of(objects, self.spec)
        for port in self.spec.get("ports", ()):
            ours = rf"\g<1>{self.ports[port['name']]}"
            environment = {
                key: re.sub(rf"(^|:){port['containerPort']}$", ours, value) for key, value in environment.items()
            }
        secrets = harness.folder / name.partition("-")[2]
        secrets.mkdir()
        values = {**harness.environment, "CREDHOOK_WEBHOOK_SECRETS": SECRET, "CREDHOOK_PUBLIC_URL": PUBLIC_URL}
        values["CREDHOOK_CONSOLE_PASSWORD"] = 32 * "p"
        (volume,) = [one for one in self.pod["volumes"] if one["name"] == "secrets"]
        for source in [one["secret"] for one in volume.get("projected", {"sources": [volume]})["sources"]]:
            kept = SECRETS[source.get("secretName") or source["name"]]
            for key in [item["key"] for item in source.get("items", ())] or kept:
                assert key in kept
                (secrets / key).write_text(f"{values[key]}\n")
        environment |= {key: harness.environment[key] for key in environment.keys() & harness.environment.keys()}
        environment |= {"CREDENTIALS_DIRECTORY": str(secrets), "CREDHOOK_HANDLERS": "plugin", **replaced}
        self.console = free_port()
        program, *arguments = [str(self.console) if part == "8060" else part for part in self.spec["command"]]
        assert program == "credhook"
        log = harness.folder / f"{secrets.name}.log"
        super().__init__(log, "-m", "credhook", *arguments, environment=environment)

    def status(self, probe: str) -> int:
        """Ask as the kubelet does, no longer than it would; 0 if nothing answers."""
        ask = self.spec[probe]["httpGet"]
        try:
            url = f"http://127.0.0.1:{self.ports[ask['port']]}{ask['path']}"
            return plain.get(url, timeout=ask.get("timeoutSeconds", 1)).status_code
        except httpx.TransportError:
            return 0

    def passes(self) -> bool:
        assert self.process.poll() is None, self.text
        return all(self.status(probe) == 200 for probe in ("startupProbe", "livenessProbe", "readinessProbe"))


@pytest.mark.parametrize("name", PODS)
def test_a_pod_can_do_no_more_than_it_must(objects: dict[str, dict[str, Any]], name: str) -> None:
    pod = template_of(objects, name)["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert f"--uid {pod['securityContext']['runAsUser']} " in (FOLDER.parent / "Dockerfile").read_text()
    assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
    probes = {one: spec["httpGet"]["path"] for one, spec in container.items() if one.endswith("Probe")}
    # Nobody should be restarted for an outage of Redis.
    expected = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert probes == (expected if name in {RECEIVER, WORKER} else {})
    assert container["resources"]["limits"].keys() == {"memory"}
    folder = config_of(objects, container).get("STATE_DIRECTORY")
    writable = [one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")]
    assert writable == (["/tmp", folder] if name == WORKER else ["/tmp"])
    assert container["volumeMounts"][0]["mountPath"] == config_of(objects, container)["CREDENTIALS_DIRECTORY"]
    other = "credhook-worker" if name == RECEIVER else "credhook-receiver"
    assert other not in yaml.safe_dump(pod)


def test_selectors_match_their_pods(objects: dict[str, dict[str, Any]]) -> None:
    ways: dict[str, set[Any]] = defaultdict(set)
    for name, one in objects.items():
        kind, spec = name.partition("/")[0], one.get("spec", {})
        if kind in {"Deployment", "PodDisruptionBudget"}:
            template = template_of(objects, f"Deployment/{one['metadata']['name']}")
            assert spec["selector"]["matchLabels"] == template["metadata"]["labels"]
        elif kind in {"HorizontalPodAutoscaler", "ScaledObject"}:  # An update with `replicas` would undo its work.
            assert "replicas" not in objects[f"Deployment/{spec['scaleTargetRef']['name']}"]["spec"]
            assert (spec.get("minReplicas") or spec.get("minReplicaCount")) == 2
        elif kind == "NetworkPolicy":
            chosen = re.findall(r"receiver|worker|endpoints|backfill", str(spec["podSelector"])) or ["all"]
            rules = [*spec.get("ingress", ()), *spec.get("egress", ())]
            for part in chosen:
                ways[part] |= {port["port"] for rule in rules for port in rule["ports"]}
    inward = {"receiver": {"deliveries", "admin"}, "worker": {"admin"}}
    outward = {"all": {53, 6379}, **{part: {443} for part in ("worker", "endpoints", "backfill")}}
    assert ways == {part: inward.get(part, set()) | outward.get(part, set()) for part in {*inward, *outward}}
    assert objects["NetworkPolicy/credhook-nothing"]["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }


def test_a_pod_has_time_to_drain(objects: dict[str, dict[str, Any]]) -> None:
    receiver, worker = (template_of(objects, name)["spec"] for name in (RECEIVER, WORKER))
    program, seconds = receiver["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert objects[RECEIVER]["spec"]["strategy"] == {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert receiver["terminationGracePeriodSeconds"] > int(seconds) + 2 * command.GRACE_SECONDS
    grace = float(config_of(objects, worker["containers"][0])["CREDHOOK_GRACE"])
    assert worker["terminationGracePeriodSeconds"] > grace + supervisor.EXTRA_GRACE_SECONDS


def test_deployments_pass_their_probes_count_what_scales_them_and_drain(
    harness: Harness, objects: dict[str, dict[str, Any]]
) -> None:
    harness.plugin(HELD)
    harness.happens("m1")
    triggers = objects["ScaledObject/credhook-worker"]["spec"]["triggers"]
    queries = " ".join(one["metadata"]["query"] for one in triggers)
    states = {state for named in re.findall(r'state=~?"([^"]+)"', queries) for state in named.split("|")}
    with (
        Container(harness, objects, RECEIVER) as receiver,
        Container(harness, objects, WORKER, CREDHOOK_GRACE="0.5") as worker,
    ):
        until(receiver.passes, what="the receiver's probes")
        until(worker.passes, what="the worker's probes")
        until(lambda: harness.notes() == ["begun m1"])

        def counted() -> bool:
            shown = [Scrape.of(f"127.0.0.1:{one.ports['admin']}") for one in (receiver, worker)]
            known = {state for one in shown for (state,) in one.series("credhook_events")}
            return states <= known and set(re.findall(r"credhook_\w+", queries)) <= shown[0].names | shown[1].names

        until(counted, what="the metrics")
        for one in (worker, receiver):
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(one.pod["terminationGracePeriodSeconds"]) == 0, one.text


def test_console_answers_on_the_loopback_of_its_pod(harness: Harness, objects: dict[str, dict[str, Any]]) -> None:
    with Container(harness, objects, CONSOLE) as console:
        until(lambda: f"http://127.0.0.1:{console.console}" in console.text, what="the console")
        assert plain.get(f"http://127.0.0.1:{console.console}/").status_code == 401
        assert console.stop() == 0


def test_a_stalled_supervisor_fails_liveness(harness: Harness, objects: dict[str, dict[str, Any]]) -> None:
    with Container(harness, objects, WORKER) as worker:
        until(worker.passes, what="the probes")
        worker.process.send_signal(signal.SIGSTOP)
        until(lambda: worker.status("livenessProbe") != 200, what="a failed probe")


def test_a_worker_whose_loop_is_blocked_fails_readiness(harness: Harness, objects: dict[str, dict[str, Any]]) -> None:
    """Its supervisor ends the process, and it is not ready until another one has started."""
    harness.plugin(BLOCKING)
    with Container(harness, objects, WORKER) as worker:
        until(worker.passes, what="the probes")
        harness.happens("m1")
        until(lambda: worker.status("readinessProbe") != 200, what="a failed probe")


@pytest.mark.parametrize("name", [JOB, CRON_JOB])
def test_a_job_ends_well(harness: Harness, objects: dict[str, dict[str, Any]], swept: None, name: str) -> None:
    harness.plugin(HELD)
    with Container(harness, objects, name) as job:
        assert job.process.wait(60) == 0, job.text
    assert (PUBLIC_URL in job.text) is (name == JOB)
