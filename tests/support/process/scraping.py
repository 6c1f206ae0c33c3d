"""What an admin listener exports, as Prometheus reads it, and what Prometheus's own tool thinks of it."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from credhook.settings import WorkerSettings
from support import plain
from support.platform.platform_settings import leading_to

#: Debian's package `prometheus` brings it.
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH: `make debian`, as root, brings it")


class Scrape:
    """One scrape of one target."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))

    @classmethod
    def of(cls, address: str) -> "Scrape":
        return cls(plain.get(f"http://{address}/metrics").raise_for_status().text)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """Each series of that name: the values of its labels, in the order of their names.

        The target's queue is left out, which each series has.
        """
        samples = [sample for family in self.families for sample in family.samples if sample.name == name]
        common = set() if name == "credhook_forsaken_events" else {"queue"}
        return {tuple(one.labels[label] for label in sorted(one.labels.keys() - common)): one.value for one in samples}

    def value(self, name: str, *labels: str) -> float | None:
        """That of one series; None if it is not there."""
        return self.series(name).get(labels)

    def total(self, name: str) -> float:
        """The sum over all series of that name, as PromQL's `sum` has it."""
        return sum(self.series(name).values())

    @property
    def names(self) -> set[str]:
        return {sample.name for family in self.families for sample in family.samples}


def worker_settings() -> WorkerSettings:
    """Those of a worker that calls nobody."""
    return WorkerSettings.model_validate(leading_to("https://platform.example"))


def well_formed(scrape: Scrape) -> bool:
    """Whether each metric has one HELP and one TYPE, and each series stands once."""
    lines = scrape.text.splitlines()
    named = [line.split()[:3] if line.startswith("#") else [line.rpartition(" ")[0]] for line in lines]
    return len(named) == len(set(map(tuple, named))) and "pid=" not in scrape.text


def promtool(*command: str, given: str = "", cwd: Path | None = None) -> str:
    """Return what it says, nothing if all is well, and fail if something is wrong."""
    assert PROMTOOL
    done = subprocess.run([PROMTOOL, *command], input=given, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def fallen(before: Scrape, after: Scrape) -> Mapping[str, float]:
    """Counters that have become less: there should be none, however many processes have died in between."""
    return {
        f"{name}{labels}": value
        for name in before.names
        if name.endswith(("_total", "_bucket", "_count", "_sum"))
        for labels, value in before.series(name).items()
        if after.series(name).get(labels, 0.0) < value
    }
