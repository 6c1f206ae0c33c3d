"""deploy/alerts.yaml and the dashboard: made of what exists; each alert has its entry in the runbook, and a test."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text()
(GROUP,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in GROUP["rules"]}
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

#: Each metric and its labels, by deploy/METRICS.md, which is held to the code elsewhere.
ROWS = re.findall(r"^\| `(credhook_\w+)` \| (\w+) \| (.*?) \|", (DEPLOY / "METRICS.md").read_text(), re.MULTILINE)
#: What Prometheus itself adds to each series.
OF_PROMETHEUS = {"job", "instance", "le"}


def series() -> Iterator[tuple[str, set[str]]]:
    for name, kind, labels in ROWS:
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            yield name + suffix, set(re.findall(r"`(\w+)`", labels)) | OF_PROMETHEUS


KNOWN = dict(series())

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


def test_every_metric_is_looked_at_somewhere_and_every_entry_of_the_runbook_is_of_an_alert() -> None:
    used = {name for _, expression in EXPRESSIONS for name in re.findall(r"\bcredhook_\w+", expression)}
    used |= set(re.findall(r"\bcredhook_\w+", json.dumps(DASHBOARD["templating"])))
    assert re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE) == list(ALERTS)
    assert {name for name, _, _ in ROWS} <= {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_leads_to_its_entry_in_the_runbook(name: str) -> None:
    annotations, labels = ALERTS[name]["annotations"], ALERTS[name]["labels"]
    assert annotations["runbook_url"] == f"RUNBOOK.md#{name.lower()}"
    assert annotations["summary"].endswith(".")
    assert labels["severity"] in {"page", "ticket"}
    (entry,) = re.findall(rf"^## {name}\n\n(.*?)(?=^## |\Z)", RUNBOOK, re.DOTALL | re.MULTILINE)
    assert re.findall(r"^- \*\*(\w+)\*\*: ", entry, re.MULTILINE)[-2:] == ["Look", "Type"]


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = yaml.safe_load((ROOT / "tests" / "alerts" / "alerts.yaml").read_text())["tests"]
    fires = {one["alertname"]: bool(one.get("exp_alerts")) for test in tests[1:] for one in test["alert_rule_test"]}
    assert fires == dict.fromkeys(ALERTS, True)
    assert {one["alertname"]: bool(one.get("exp_alerts")) for one in tests[0]["alert_rule_test"]} == dict.fromkeys(
        ALERTS, False
    )


def test_the_metrics_that_the_runbook_names_exist() -> None:
    assert set(re.findall(r"`(credhook_\w+)", RUNBOOK)) <= set(KNOWN) | {name for name, _, _ in ROWS}
