"""A worker whose own credentials are refused: it takes no events, costs none an attempt, and status names it."""

import re
from socket import gethostname

import trustme

from credhook.ops.findings import look_at
from credhook.sandbox.local.environment import free_port
from support import plain
from support.store.stores import store_on
from support.waiting import until
from support.worker.fleet_harness import FleetHarness
from support.worker.harness import COMPLETED

EVENTS = [f"m{number}" for number in range(30)]


def test_refused_credentials_cost_no_event(rig: FleetHarness, authority: trustme.CA) -> None:
    rig.plugin('@handlers.on("*")\nasync def handled(event, context): ...\n')
    rig.environment["CREDHOOK_MAX_ATTEMPTS"] = "1"
    rig.stub.client_secrets = {"good"}

    def named() -> str:
        """What status says of the credentials."""
        _, findings = look_at(store_on(rig.redis), rig.redis_url)
        return "".join(f"{one.what}; {one.remedy}" for one in findings if one.name == "fleet.credentials")

    certificate = rig.environment["CREDHOOK_CLIENT_CERTFILE"] = str(rig.folder / "certificate.pem")
    authority.issue_cert("worker").private_key_and_cert_chain_pem.write_to_path(certificate)
    admin = f"127.0.0.1:{free_port()}"
    with rig.worker("bad", CREDHOOK_CLIENT_SECRET="bad", CREDHOOK_ADMIN=admin) as bad:
        said = until(named, what="the finding")
        assert "CREDHOOK_CLIENT_ID" in said
        answer = plain.get(f"http://{admin}/readyz")
        assert (answer.status_code, "CREDHOOK_CLIENT_ID" in answer.json()["checks"]["workers"]) == (503, True)
        metrics = plain.get(f"http://{admin}/metrics").text
        assert 'check="workers"' not in metrics  # It is not about Redis.
        assert 'credhook_token_fetches_total{outcome="refused",queue="credhook"} 0.0' not in metrics
        assert 'credhook_certificate_expiry_timestamp_seconds{part="worker",queue="credhook"}' in metrics
        until(lambda: "credhook_queue_length" in plain.get(f"http://{admin}/metrics").text, what="the queue's figures")
        rig.accept(*((webhook_id, COMPLETED, f"iss_{webhook_id}") for webhook_id in EVENTS))
        with rig.worker("good", CREDHOOK_CLIENT_SECRET="good"):
            for webhook_id in EVENTS:
                assert "attempts" not in rig.reaches(webhook_id, "done")
        assert "fetch_failed" not in bad.text
        rig.stub.client_secrets = None
        until(lambda: not named(), what="the end of the finding")
        until(lambda: plain.get(f"http://{admin}/readyz").is_success, what="readiness")
        found = re.match(rf"worker {gethostname()} pid (\d+) takes no events", said)
        assert found
        assert int(found[1]) in range(bad.process.pid, 1 << 22)
