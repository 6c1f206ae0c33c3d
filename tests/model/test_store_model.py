"""A hundred histories of the store, the same each time. `make model` looks for others until it is stopped."""

import os

from support.checkout import ROOT
from support.process.commands import run


def test_histories_keep_the_promises_of_the_store() -> None:
    done = run("-m", "model.explore", "12", env={**os.environ, "PYTHONPATH": str(ROOT / "tests")})
    assert done.returncode == 0, done.stdout + done.stderr
    met = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert {"take none", "end as done", "end as waiting", "sweep", "die at a script", "erase accepted"} <= met
