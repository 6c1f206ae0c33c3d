"""`credhook events`: in this process, in one of its own, and at a terminal that it can ask at."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from click.testing import Result
from forked_process import Forked

ROOT = Path(__file__).parents[2]

#: The command with these arguments and settings, run in this process.
Run = Callable[..., Result]


def listed(result: Result) -> list[str]:
    """The ids of the events that a list with --json shows, in its order."""
    return [json.loads(line)["webhook_id"] for line in result.stdout.splitlines()]


def process(redis_url: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """It as a process of its own."""
    return Forked(
        [sys.executable, "-m", "credhook", "events", *arguments],
        env={**os.environ, "REDIS_URL": redis_url}, cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


class terminal:  # noqa: N801  It reads like a function.
    """The command with a terminal to ask at; what it asks comes by its standard error."""

    def __init__(self, redis_url: str, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = process(redis_url, *arguments, stdin=theirs, start_new_session=True)
        os.close(theirs)

    def __enter__(self) -> tuple["subprocess.Popen[str]", Callable[[str], None]]:
        def write(text: str) -> None:
            os.write(self._ours, text.encode())

        return self._process, write

    def __exit__(self, *_: object) -> None:
        with closing(os.fdopen(self._ours)), self._process:
            self._process.kill()


def asked(running: "subprocess.Popen[str]") -> None:
    """Return once the question has been asked."""
    assert running.stderr is not None
    said = ""
    while not said.endswith("[y/N]: "):
        one = running.stderr.read(1)
        assert one, said
        said += one
