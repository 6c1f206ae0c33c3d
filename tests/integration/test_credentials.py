"""A worker whose own credentials are refused: it takes no events, costs none an attempt, and status names it."""

import json
import re
from pathlib import Path
from socket import gethostname
from urllib.parse import parse_qs

import plain
import pytest
from accepting import accept
from harness import COMPLETED, PLAIN, Workers
from in_thread import Asked, http_server
from stores import store_on
from waiting import until

from credhook.ops.attention import look_at
from credhook.sandbox.local.environment import free_port

EVENTS = [f"m{number}" for number in range(30)]


class Platform:
    """A platform that accepts the client `good`. `bad` gets no token, or its tokens are refused."""

    def __init__(self, refusing: str) -> None:
        self.refusing = refusing
        self.refused = 0

    def __call__(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        if asked.path == "/token":
            (client,) = parse_qs(asked.body.decode())["client_id"]
            if client == "bad" and self.refusing == "token":
                self.refused += 1
                return 401, {}, b'{"error": "invalid_client"}'
            return 200, {}, json.dumps({"access_token": client, "expires_in": 300}).encode()
        if asked.headers["authorization"] == "Bearer bad" and self.refusing == "api":
            self.refused += 1
            return 401, {}, b'{"errors": []}'
        return 200, {}, json.dumps({"id": asked.path.rpartition("/")[2], "status": "completed"}).encode()


@pytest.mark.parametrize(("refusing", "isolation"), [("token", "loop"), ("api", "loop"), ("token", "fork")])
def test_refused_credentials_cost_no_event_and_are_named(
    tmp_path: Path, redis_url: str, refusing: str, isolation: str
) -> None:
    platform = Platform(refusing)
    with http_server(platform) as url:
        names = {"API_URL": url, "TOKEN_URL": f"{url}/token", "CLIENT_SECRET": "s", "MAX_ATTEMPTS": "1"}
        workers = Workers(tmp_path, redis_url, {f"CREDHOOK_{name}": value for name, value in names.items()})
        workers.plugin(PLAIN)

        def named() -> str:
            """What status says of the credentials."""
            _, findings = look_at(store_on(workers.redis), redis_url)
            return "".join(f"{one.what}; {one.remedy}" for one in findings if one.name == "fleet.credentials")

        admin = f"127.0.0.1:{free_port()}"
        options = "--isolation", isolation
        with workers.worker("bad", *options, CREDHOOK_CLIENT_ID="bad", CREDHOOK_ADMIN=admin) as bad:
            if refusing == "api":  # Only a call can show it.
                accept(redis_url, "first", COMPLETED, "iss_first")
            said = until(named, what="the finding")
            assert "CREDHOOK_CLIENT_ID" in said
            answer = plain.get(f"http://{admin}/readyz")
            assert (answer.status_code, "CREDHOOK_CLIENT_ID" in answer.json()["checks"]["workers"]) == (503, True)
            metrics = plain.get(f"http://{admin}/metrics").text
            assert 'check="workers"' not in metrics  # It is not about Redis.
            assert ('credhook_token_fetches_total{outcome="refused"} 0.0' in metrics) == (refusing == "api")
            for webhook_id in EVENTS:
                accept(redis_url, webhook_id, COMPLETED, f"iss_{webhook_id}")
            with workers.worker("good", CREDHOOK_CLIENT_ID="good"):
                for webhook_id in EVENTS:
                    assert "attempts" not in workers.reaches(webhook_id, "done")
            assert platform.refused <= 10
            if refusing == "token":
                assert "fetch_failed" not in bad.text
                platform.refusing = ""
                until(lambda: not named(), what="the end of the finding")
                until(lambda: plain.get(f"http://{admin}/readyz").is_success, what="readiness")
            found = re.match(rf"worker {gethostname()} pid (\d+) takes no events", said)
            assert found
            assert int(found[1]) in range(bad.process.pid, 1 << 22)
