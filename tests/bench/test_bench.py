"""The benchmark itself, small: it runs, and it finds out competitors that do not do the work."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.project import release

if sys.platform != "linux" or shutil.which("wrk") is None:
    pytest.skip("the benchmark needs Linux and wrk (Debian: apt install wrk)", allow_module_level=True)

from bench.competitors import BARE, OURS, OURS_CROWDED, STRICT
from bench.deliveries import sign
from bench.ingest import run
from bench.machine import ROOT, RunFailed


def bench(part: str, out: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Run a part. Return its output and its results."""
    command = (sys.executable, "-m", f"bench.{part}", "--out", str(out), *options)
    said = release.run(*command, folder=ROOT, PYTHONPATH=str(ROOT / "tests"))
    results = out / f"{part}.json"
    return said, json.loads(results.read_text()) if results.exists() else {}


def test_the_parts_measure_credhook_beside_the_limits(tmp_path: Path) -> None:
    said, results = bench("ingest", tmp_path, "--small")
    assert set(results["throughput"]) == {STRICT.name, BARE.name}
    assert "| credhook, strict / bare Starlette |" in said
    said, results = bench("work", tmp_path, "--small", "--latency", "0.05")
    assert [set(field) for field in results["rounds"].values()] == [{OURS.name, OURS_CROWDED.name}]
    assert "400 at once, an API of 50 ms, MiB |" in said
    said, results = bench("growth", tmp_path, "--small")
    assert results["curves"]["stored"].keys() == {"1000"}
    assert results["processes"].keys() == {"1"}
    said, results = bench("start", tmp_path, "--small")
    assert results["seconds"].keys() == {"credhook --help", "credhook receiver", "credhook worker", "credhook dev"}
    said, _ = bench("sizing", tmp_path)
    assert "| 100,000,000 |" in said
    assert {plot.name for plot in tmp_path.glob("*.svg")} == {
        "ingest.svg",
        "work-50-ms.svg",
        "start.svg",
        *(f"growth-{varied}.svg" for varied in ("stored", "groups", "resources", "processes")),
    }


def test_a_server_that_does_not_do_the_work_is_found_out(tmp_path: Path) -> None:
    idler = replace(BARE, title="an idler", jobs="rq:queue:credhook", verifies=True)
    found = r"an idler: a forged, a first and a repeated delivery gave \[202, 202, 202\] and 0 jobs"
    (tmp_path / "run").mkdir()
    deliveries = sign(tmp_path / "deliveries", 10)
    with pytest.raises(RunFailed, match=found), run(idler, deliveries, tmp_path / "run"):
        pass
