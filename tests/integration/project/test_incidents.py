"""Prometheus's judgement of deploy/alerts.yaml in incidents: each fires the alerts in its row and no other, for its fleet."""
# ruff: noqa: E501  A row of the table is one line.

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from support.checkout import ROOT
from support.process.scraping import needs_promtool, promtool

#: Minutes in which all is well, in which the incident lasts, and in which all is well again.
BEFORE, DURING, AFTER = 20, 45, 45
#: Minutes after which alerts are compared: late in the incident, and late after its end.
LATE, RESOLVED = BEFORE + DURING - 3, BEFORE + DURING + AFTER - 4
ABSENT: Final = "_"


class Growing:
    """A figure that grows by so much a minute. Its healthy value is a number, or growth at another rate."""

    def __init__(self, step: float) -> None:
        self.step = step


Value = float | str | Growing

#: A fleet that is well: series without the label `queue` → value. Targets a and b are receivers, c is a worker.
WELL: dict[str, Value] = {
    'up{job="credhook",instance="a"}': 1, 'up{job="credhook",instance="b"}': 1, 'up{job="credhook",instance="c"}': 1,
    'credhook_up{part="receiver",instance="a"}': 1, 'credhook_up{part="receiver",instance="b"}': 1, 'credhook_up{part="worker",instance="c"}': 1,
    'credhook_redis_up{instance="a"}': 1, 'credhook_redis_up{instance="c"}': 1,
    'credhook_redis_check{check="memory",severity="critical",instance="a"}': 1, 'credhook_redis_check{check="fsync",severity="critical",instance="a"}': 1,
    'credhook_redis_memory_used_bytes{instance="a"}': 500, 'credhook_redis_memory_limit_bytes{instance="a"}': 1_000,
    'credhook_workers{version="1",instance="a"}': 4, 'credhook_workers{version="1",instance="c"}': 4, 'credhook_workers{version="2",instance="c"}': ABSENT,
    'credhook_receivers{version="1",instance="c"}': 2, 'credhook_receivers_refusing{instance="c"}': 0,
    'credhook_last_delivery_age_seconds{instance="c"}': 0, 'credhook_deliveries_missing{instance="c"}': 0,
    'credhook_outside_check{check="public_url.reached",instance="c"}': 1, 'credhook_outside_check{check="public_url.certificate",instance="c"}': 1,
    'credhook_outside_check{check="public_url.receiver",instance="c"}': 1, 'credhook_outside_check{check="platform.endpoints",instance="c"}': 1,
    'credhook_events{state="queued",instance="c"}': 3, 'credhook_events{state="dead",instance="c"}': 4, 'credhook_queue_length{instance="c"}': 3,
    'credhook_events{state="quarantined",instance="c"}': 0, 'credhook_events{state="unhandled",instance="c"}': 0,
    'credhook_oldest_open_event_age_seconds{instance="c"}': 2, 'credhook_vanished_events{instance="c"}': 0,
    'credhook_deliveries_total{outcome="accepted",instance="a"}': Growing(10), 'credhook_deliveries_total{outcome="accepted",instance="b"}': Growing(10),
    'credhook_refusals_total{rule="signature",instance="a"}': Growing(0), 'credhook_refusals_total{rule="signature",instance="b"}': Growing(0),
    'credhook_refusals_total{rule="storage",instance="a"}': Growing(0), 'credhook_turned_away_total{reason="full",instance="a"}': Growing(0),
    'credhook_attempts_total{state="done",instance="c"}': Growing(20), 'credhook_attempts_total{state="dead",instance="c"}': Growing(0),
    'credhook_token_fetches_total{outcome="granted",instance="c"}': Growing(1), 'credhook_token_fetches_total{outcome="refused",instance="c"}': Growing(0),
    'credhook_platform_breaker{instance="c"}': 0, 'credhook_platform_pause_seconds{instance="c"}': 0, 'credhook_handlers_hung{instance="c"}': 0,
    'credhook_certificate_expiry_timestamp_seconds{part="receiver",instance="a"}': 99_999_999,
}  # fmt: skip

NONE_ACCEPTED: dict[str, Value] = {
    'credhook_deliveries_total{outcome="accepted",instance="a"}': Growing(0),
    'credhook_deliveries_total{outcome="accepted",instance="b"}': Growing(0),
}
SILENT = {
    **NONE_ACCEPTED,
    'credhook_last_delivery_age_seconds{instance="c"}': Growing(60),
    'credhook_deliveries_missing{instance="c"}': 1,
}
NOT_DONE: dict[str, Value] = {
    'credhook_attempts_total{state="done",instance="c"}': Growing(0),
    'credhook_events{state="queued",instance="c"}': Growing(10),
    'credhook_queue_length{instance="c"}': Growing(10),
    'credhook_oldest_open_event_age_seconds{instance="c"}': Growing(60),
}
#: What Redis no longer tells: all figures of the queue.
NO_FIGURES: dict[str, Value] = {
    name: ABSENT
    for name in WELL
    if any(
        word in name
        for word in (
            "_workers",
            "_receivers",
            "_last_",
            "_missing",
            "outside",
            "_events",
            "_length",
            "_oldest",
            "_memory",
            "_check",
            "_pause",
        )
    )
}

#: Incident → figures during the incident, and the alerts that fire.
INCIDENTS: dict[str, tuple[dict[str, Value], set[str]]] = {
    "both receivers are stopped": ({**SILENT, 'credhook_receivers{version="1",instance="c"}': 0, 'credhook_outside_check{check="public_url.receiver",instance="c"}': 0, **dict.fromkeys(('up{job="credhook",instance="a"}', 'up{job="credhook",instance="b"}', 'credhook_up{part="receiver",instance="a"}', 'credhook_up{part="receiver",instance="b"}'), ABSENT)}, {"CredhookNoReceiver"}),
    "the proxy's certificate has expired": ({**SILENT, 'credhook_outside_check{check="public_url.certificate",instance="c"}': 0}, {"CredhookUnreachable"}),
    "the proxy is gone": ({**SILENT, 'credhook_outside_check{check="public_url.reached",instance="c"}': 0}, {"CredhookUnreachable"}),
    "the endpoint was deleted at the platform": ({**SILENT, 'credhook_outside_check{check="platform.endpoints",instance="c"}': 0}, {"CredhookNotRegistered"}),
    "the platform delivers nothing and says nothing": (SILENT, {"CredhookNoDeliveries"}),
    "one receiver has a wrong secret": ({'credhook_receivers_refusing{instance="c"}': 1, 'credhook_up{part="receiver",instance="b"}': 0, 'credhook_deliveries_total{outcome="accepted",instance="b"}': Growing(0), 'credhook_refusals_total{rule="signature",instance="b"}': Growing(10)}, {"CredhookReceiverRefuses"}),
    "the platform has another secret": ({**SILENT, 'credhook_refusals_total{rule="signature",instance="a"}': Growing(10), 'credhook_refusals_total{rule="signature",instance="b"}': Growing(10)}, {"CredhookRefusing"}),
    "a flood of forged deliveries": ({'credhook_refusals_total{rule="signature",instance="a"}': Growing(6_000)}, set()),
    "all connections are taken": ({'credhook_turned_away_total{reason="full",instance="a"}': Growing(60)}, {"CredhookTurnedAway"}),
    "answers are not read": ({'credhook_turned_away_total{reason="answer_unread",instance="a"}': Growing(60)}, {"CredhookTurnedAway"}),
    "all workers are dead": ({**NOT_DONE, 'credhook_workers{version="1",instance="a"}': 0, 'credhook_workers{version="1",instance="c"}': ABSENT, 'credhook_forsaken_events{queue="q",instance="a"}': Growing(10), 'credhook_up{part="worker",instance="c"}': ABSENT, 'up{job="credhook",instance="c"}': ABSENT}, {"CredhookNoWorker"}),
    "Redis is full": ({**NONE_ACCEPTED, 'credhook_redis_check{check="memory",severity="critical",instance="a"}': 0, 'credhook_redis_memory_used_bytes{instance="a"}': 1_000, 'credhook_refusals_total{rule="storage",instance="a"}': Growing(10), 'credhook_up{part="receiver",instance="a"}': 0, 'credhook_up{part="receiver",instance="b"}': 0, 'credhook_up{part="worker",instance="c"}': 0}, {"CredhookRedisUnsafe"}),
    "Redis is nearly full": ({'credhook_redis_memory_used_bytes{instance="a"}': 900}, {"CredhookRedisMemory"}),
    "Redis is down": ({**NO_FIGURES, **NONE_ACCEPTED, 'credhook_redis_up{instance="a"}': 0, 'credhook_redis_up{instance="c"}': 0, 'credhook_refusals_total{rule="storage",instance="a"}': Growing(10), 'credhook_up{part="receiver",instance="a"}': 0, 'credhook_up{part="receiver",instance="b"}': 0, 'credhook_up{part="worker",instance="c"}': 0}, {"CredhookRedisDown"}),
    "Redis has evicted records": ({'credhook_vanished_events{instance="c"}': 9}, {"CredhookVanished"}),
    "the receivers' queue is misspelt": ({'credhook_forsaken_events{queue="typo",instance="c"}': Growing(10)}, {"CredhookForsaken"}),
    "the platform is down": ({**NOT_DONE, 'credhook_platform_breaker{instance="c"}': 4, 'credhook_platform_pause_seconds{instance="c"}': 30}, {"CredhookBreakerOpen"}),
    "the client's secret has expired": ({**NOT_DONE, 'credhook_token_fetches_total{outcome="granted",instance="c"}': Growing(0), 'credhook_token_fetches_total{outcome="refused",instance="c"}': Growing(1), 'credhook_up{part="worker",instance="c"}': 0}, {"CredhookTokenNotGranted"}),
    "a handler fails for good": ({'credhook_attempts_total{state="dead",instance="c"}': Growing(5)}, {"CredhookDeadRate"}),
    "a handler hangs": ({'credhook_handlers_hung{instance="c"}': 3}, {"CredhookHandlersHung"}),
    "a deploy has left a host out": ({'credhook_workers{version="1",instance="c"}': 2, 'credhook_workers{version="2",instance="c"}': 2}, {"CredhookVersionsDiffer"}),
    "the platform sends a new type": ({'credhook_events{state="quarantined",instance="c"}': 1}, {"CredhookQuarantined"}),
    "workers are too slow": ({'credhook_events{state="queued",instance="c"}': Growing(100), 'credhook_queue_length{instance="c"}': Growing(100)}, {"CredhookQueueGrows"}),
    "the receiver's certificate ends soon": ({'credhook_certificate_expiry_timestamp_seconds{part="receiver",instance="a"}': 864_000}, {"CredhookCertificateExpires"}),
    "the proxy's certificate ends soon": ({'credhook_outside_check{check="public_url.certificate",instance="c"}': 0.5}, {"CredhookPublicCertificateExpires"}),
    "one target cannot be scraped": ({**{name: ABSENT for name in WELL if 'instance="b"' in name}, 'up{job="credhook",instance="b"}': 0}, {"CredhookTargetDown"}),
    "the whole fleet is not scraped": (dict.fromkeys(WELL, ABSENT), {"CredhookNotScraped"}),
}  # fmt: skip


def samples(well: Value, during: Value) -> str:
    """Return the values of a series, minute by minute, as promtool reads them."""

    def values() -> Iterator[str]:
        at = 0.0
        for minute in range(BEFORE + DURING + AFTER):
            value = during if BEFORE <= minute < BEFORE + DURING else well
            if isinstance(value, Growing):
                at += value.step
            elif not isinstance(value, str):
                at = value
            yield value if isinstance(value, str) else f"{at:g}"

    return " ".join(values())


def series(queue: str, during: dict[str, Value]) -> list[dict[str, str]]:
    rows = []
    for name in {**WELL, **during}:
        well = WELL.get(name, 0)
        label = "" if "queue=" in name or name.startswith("up{") else f',queue="{queue}"'
        labelled = name.replace("}", label + "}").replace('instance="', f'instance="{queue}-')
        rows.append({"series": labelled, "values": samples(well, during.get(name, well))})
    return rows


def firing(alerts: set[str], queue: str) -> list[dict[str, Any]]:
    fleet = f', queue="{queue}"' if queue else ""
    return [{"labels": f'{{alertname="{name}"{fleet}}}', "value": 1} for name in sorted(alerts)]


@needs_promtool
@pytest.mark.parametrize("name", INCIDENTS)
def test_incident_fires_its_alert_alone_for_its_fleet(name: str, tmp_path: Path) -> None:
    during, alerts = INCIDENTS[name]
    queue = {"the receivers' queue is misspelt": "typo", "one target cannot be scraped": ""}.get(name, "q")
    expression = 'group by (alertname, queue) (ALERTS{alertstate="firing"})'
    test = {
        "interval": "1m",
        "input_series": series("q", during) + series("other", {}),
        "promql_expr_test": [
            {"expr": expression, "eval_time": f"{LATE}m", "exp_samples": firing(alerts, queue)},
            {"expr": expression, "eval_time": f"{RESOLVED}m", "exp_samples": []},
        ],
    }
    rules = str(ROOT / "deploy" / "alerts.yaml")
    (tmp_path / "incident.yaml").write_text(
        yaml.safe_dump({"rule_files": [rules], "evaluation_interval": "2m", "tests": [test]})
    )
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "incident.yaml"))


def test_every_alert_of_an_incident_exists() -> None:
    (group,) = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"]
    assert set().union(*(alerts for _, alerts in INCIDENTS.values())) <= {rule["alert"] for rule in group["rules"]}


#: What a fleet with 4 workers, 900 open events and an old one has, and the results of both queries of KEDA.
SCALING: dict[str, tuple[dict[str, str], list[float]]] = {
    "much to do": ({}, [900, 300]),
    "little to do": ({'credhook_events{state="queued"}': "120x20"}, [120, 300]),
    "a CREDHOOK_RATE that is not used up": ({"credhook_platform_rate_limit": "10x20"}, [900, 300]),
    "a CREDHOOK_RATE that is used up": ({"credhook_platform_rate_limit": "5x20"}, [400, 0]),
    "a pause of the platform": ({"credhook_platform_pause_seconds": "30x20"}, [400, 0]),
    "little to do in a pause": (
        {"credhook_platform_pause_seconds": "30x20", 'credhook_events{state="queued"}': "120x20"},
        [120, 0],
    ),
}


@needs_promtool
@pytest.mark.parametrize("name", SCALING)
def test_no_worker_is_added_that_could_not_call_the_platform(name: str, tmp_path: Path) -> None:
    scaled = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "worker-scaling.yaml").read_text())
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    changed, results = SCALING[name]
    figures = {
        'credhook_events{state="queued"}': "900x20",
        'credhook_workers{version="1"}': "4x20",
        "credhook_oldest_open_event_age_seconds": "300x20",
        'credhook_fetch_duration_seconds_count{status="2xx"}': "0+300x20",
        "credhook_platform_rate_limit": "0x20",
        "credhook_platform_pause_seconds": "0x20",
        **changed,
    }
    rows = [
        {"series": f'{(name if "{" in name else name + "{}")[:-1]},queue="{queue}"}}'.replace("{,", "{"), "values": row}
        for queue in ("credhook", "other")
        for name, row in (
            figures if queue == "credhook" else figures | {"credhook_platform_pause_seconds": "9x20"}
        ).items()
    ]
    expected = [
        {"expr": query, "eval_time": "15m", "exp_samples": [{"labels": "{}", "value": result}]}
        for query, result in zip(queries, results, strict=True)
    ]
    test = {"interval": "1m", "input_series": rows, "promql_expr_test": expected}
    (tmp_path / "scaling.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "scaling.yaml"))
