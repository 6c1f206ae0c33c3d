"""deploy/compose.yaml as a whole, without an engine: the command, variables and health check of each service."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from credhook.sandbox.local.environment import LOGS_ONLY, free_port
from support.process.serving import Platform
from support.project.compose import SERVICES, Container, store
from support.project.reverse_proxies import ADDRESSES, needs, proxied
from support.waiting import until


@pytest.mark.usefixtures("swept")
def test_compose_services_deliver_and_report_a_stalled_worker(
    tmp_path: Path, sandbox: Platform, authority: trustme.CA
) -> None:
    needs("haproxy")
    port, admin, redis_port = free_port(), free_port(), free_port()
    redis = {"redis:6379": f"127.0.0.1:{redis_port}"}
    platform = {name: value for name, value in sandbox.environment.items() if "WEBHOOK" not in name}
    platform["CREDHOOK_HANDLERS"] = LOGS_ONLY
    with ExitStack() as stack:
        start = stack.enter_context
        shipped = start(store(tmp_path, redis_port))
        until(shipped.is_healthy, what="the Redis")
        assert SERVICES["receiver"]["deploy"] == {"replicas": len(ADDRESSES)}
        receivers = []
        for address in ADDRESSES:
            here = {"0.0.0.0": address, "127.0.0.1": address, '"8000"': f'"{port}"', ":8000": f":{port}"}
            filled_in = {"CREDHOOK_WEBHOOK_SECRETS": sandbox.environment["CREDHOOK_WEBHOOK_SECRETS"]}
            here |= {":9100": f":{free_port()}"} | redis
            receivers.append(start(Container(tmp_path, "receiver", here, filled_in, log=address)))
        worker = start(Container(tmp_path, "worker", redis | {":9100": f":{admin}"}, platform))
        for container in (*receivers, worker):
            until(container.is_healthy, what="a healthy container")

        proxy = start(proxied("haproxy", tmp_path, port, authority))
        url = {"CREDHOOK_PUBLIC_URL": f"{proxy.url}/webhooks"}
        with start(Container(tmp_path, "endpoints", {}, platform | url)) as endpoints:
            assert endpoints.process.wait(60) == 0
            assert endpoints.text.endswith("done\n")
        sandbox.make()
        until(lambda: '"event_done"' in worker.text, what="the event's handler")

        worker.pause()
        assert not worker.is_healthy()
        worker.resume()
        until(worker.is_healthy, what="the worker")
        assert [container.stop() for container in (*receivers, worker, shipped)] == [0] * 4
