"""What so many events a day need, and the README that the figures go into."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from bench.environments import HERE, ROOT
from bench.readme import PARTS, filled
from bench.results import Results, Throughput
from bench.sizing import Costs, Habits, NotMeasured, costs, need, sheet
from bench.work import results as work

COSTS = Costs(deliveries=10_000, events=1_000, receiver=60, worker=440, redis=50, kept=500)


def ingested(**rates: float) -> Results:
    return Results({}, {}, {name: [Throughput(rate, 60.0, 60.0, 20.0, 800.0)] for name, rate in rates.items()})


def worked(*, kept: float | None = 500.0) -> work.Results:
    return work.Results(
        {}, {"credhook": "credhook"}, 0.05, {"credhook": [work.Work(1_000.0, 100, True, 440.0, 100.0, 0.2, 30.0, kept)]}
    )


def test_what_both_benches_found_is_the_cost_of_an_event() -> None:
    assert costs(ingested(strict=10_000.0), worked()) == COSTS


def test_a_figure_that_is_missing_is_named_with_how_to_measure_it() -> None:
    with pytest.raises(NotMeasured, match="no figures of strict and credhook"):
        costs(ingested(standard=10_000.0), worked())
    with pytest.raises(NotMeasured, match="with a higher --limit"):
        costs(ingested(strict=10_000.0), worked(kept=None))


def test_the_busiest_hour_decides_about_processes_and_the_retention_about_memory() -> None:
    found = need(COSTS, 86_400 * 1_000, Habits(peak=2.0, load=0.5, days=7.0))
    assert found.a_second == pytest.approx(2_000)
    assert (found.receivers, found.workers) == (1, 4)
    assert found.cores == pytest.approx(2_000 * 500e-6)
    assert found.redis == pytest.approx(2_000 * 50e-6)
    assert found.memory == pytest.approx(86_400_000 * 7 * 500)


def test_one_process_of_each_is_the_least() -> None:
    found = need(COSTS, 10)
    assert (found.receivers, found.workers) == (1, 1)


def test_the_table_has_a_row_for_each_amount_and_leaves_out_what_is_not_told() -> None:
    rows = sheet(COSTS).rows
    assert [row[0] for row in rows] == ["100,000", "1,000,000", "10,000,000", "100,000,000"]
    assert rows[-1][1:] == ["4,630", "1", "10", "2.31", "23.1%", "326.0 GiB"]
    untold = Costs(deliveries=10_000, events=1_000, receiver=None, worker=None, redis=50, kept=500)
    assert sheet(untold).rows[0][4] == ""


def test_both_are_read_from_the_results_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.sizing", "--out", str(tmp_path)]

    def sized() -> "subprocess.CompletedProcess[str]":
        environment = {"PYTHONPATH": str(ROOT / "tests")}
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)

    ingested(strict=10_000.0).write(tmp_path / "ingest.json")
    missing = sized()
    assert missing.returncode == 1
    assert "work.json is missing: run bench.ingest and bench.work first" in missing.stderr
    worked().write(tmp_path / "work.json")
    assert sized().returncode == 0
    assert "| 100,000,000 | 4,630 |" in (tmp_path / "sizing.md").read_text()


def test_figures_replace_what_stood_in_their_place_and_nothing_else() -> None:
    page = "before\n<!-- work -->\nold \\1\n<!-- /work -->\nafter\n"
    assert filled(page, {"work": "new \\1\n"}) == "before\n<!-- work -->\nnew \\1\n<!-- /work -->\nafter\n"
    with pytest.raises(click.ClickException, match="no place for growth"):
        filled(page, {"growth": "new"})


def test_the_readme_has_a_place_for_every_part() -> None:
    page = (HERE / "README.md").read_text()
    assert filled(page, dict.fromkeys(PARTS, "")) != page
