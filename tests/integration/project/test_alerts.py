"""Prometheus's own judgement of deploy/alerts.yaml, and of each expression of the dashboard."""

import json
from pathlib import Path

import yaml

from support.checkout import ROOT
from support.process.scraping import needs_promtool, promtool


@needs_promtool
def test_each_alert_fires_when_it_should_and_none_when_all_is_well() -> None:
    promtool("check", "rules", str(ROOT / "deploy" / "alerts.yaml"))
    assert "SUCCESS" in promtool("test", "rules", "alerts.yaml", cwd=ROOT / "tests" / "alerts")


@needs_promtool
def test_prometheus_can_read_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert expressions
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(expressions)
    ]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "rules.yaml"))
