"""Run a tool where there is no network and no Redis, as handler authors test."""

import functools
import os
import subprocess
import sys
from pathlib import Path

_CUT_OFF = ("unshare", "--user", "--map-root-user", "--net")

#: pytest, without those of its plugins here that no author of handlers is told to install: a second and a half.
PYTEST = ("pytest", "-q", *(f"-pno:{one}" for one in ("hypothesispytest", "anyio", "xdist", "timeout")))


@functools.cache
def _cut_off() -> tuple[str, ...]:
    """The command that takes the network away, if this machine lets us."""
    try:
        subprocess.run([*_CUT_OFF, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return _CUT_OFF


def run(folder: Path, *command: str, warnings: str = "ignore") -> str:
    """What a Python module says there. It has to succeed."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "REDIS_URL": "redis://127.0.0.1:1"}
    done = subprocess.run(
        [*_cut_off(), sys.executable, "-W", warnings, "-m", *command],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
