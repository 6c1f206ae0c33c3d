"""`credhook events`: in this process, in one of its own, and at a terminal that it can ask at."""

import json
import os
import pty
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import Result

from support.checkout import ROOT
from support.process.commands import start

#: The command with these arguments and settings, run in this process.
Run = Callable[..., Result]


def listed(result: Result) -> list[str]:
    """The ids of the events that a list with --json shows, in its order."""
    return [json.loads(line)["webhook_id"] for line in result.stdout.splitlines()]


def process(redis_url: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    settings: dict[str, Any] = {"env": {**os.environ, "REDIS_URL": redis_url}, "cwd": ROOT} | options
    command = ["-m", "credhook", "events", *arguments]
    return start(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)


@contextmanager
def terminal(redis_url: str, *arguments: str) -> "Iterator[tuple[subprocess.Popen[str], Callable[[str], object]]]":
    """The command with a terminal to ask at, and what writes there; what it asks comes by its standard error."""
    ours, theirs = pty.openpty()
    running = process(redis_url, *arguments, stdin=theirs, start_new_session=True)
    os.close(theirs)
    with os.fdopen(ours, "w") as keyboard, running:
        try:
            yield running, lambda text: print(text, file=keyboard, flush=True)
        finally:
            running.kill()


def asked(running: "subprocess.Popen[str]") -> None:
    """Return once the question has been asked."""
    assert running.stderr is not None
    said = ""
    while not said.endswith("[y/N]: "):
        one = running.stderr.read(1)
        assert one, said
        said += one
