"""The benchmark of growing work, small: that every point runs, and is what its name says."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench.environments import ROOT
from bench.growth.axes import AXES
from bench.growth.results import Growth
from bench.growth.sheets import sheets
from bench.work.results import rate
from bench.work.stub import issuance


def test_one_command_measures_every_point_of_an_axis(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.growth", "--small", "--axes", "retries", "--out", str(tmp_path)]
    environment = {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = Growth.read(tmp_path / "growth.json")
    assert list(results.axes["retries"]) == list(AXES["retries"].points)
    assert all(rate(rounds) > 0 and rounds[0].whole for rounds in results.axes["retries"].values())
    assert [sheet.title for sheet in sheets(results)] == ["By events that are tried twice"]
    assert "| 10 % |" in (tmp_path / "growth.md").read_text()


@pytest.mark.parametrize("count", ["1", "10", "100"])
def test_an_event_has_as_many_handlers_as_the_point_says(count: str) -> None:
    program = "from bench.programs.credhook_events import nothing; print(len(list(nothing)))"
    environment = {**AXES["handlers"].points[count].settings, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == count


def test_an_event_that_is_tried_twice_is_fetched_twice() -> None:
    terms = AXES["retries"].points["10 %"].terms
    assert terms.requests(1_000) == 1_100
    assert terms.requests(91) == 101
    assert AXES["retries"].points["0 %"].terms.requests(1_000) == 1_000


def test_the_largest_backlog_is_filled_whole_and_worked_on_for_a_while() -> None:
    point = AXES["backlog"].points["1,000,000"]
    assert point.terms.queue(point.worker()) == 1_000_000
    assert point.terms.limit < 60


def test_the_details_are_as_large_as_they_are_named() -> None:
    for name, point in AXES["details"].points.items():
        assert len(issuance(point.terms.size)) >= int(name.removesuffix(" KB")) * 1_000
