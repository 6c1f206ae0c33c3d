"""`credhook dev` as its user has it: a folder with a module, a process, what it prints, and files that are saved."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import plain
from support.process.commands import invoke, start, take_terminal
from support.waiting import until

COMPLETED = "openid4vc.issuance.completed"

#: Writes down when each run has begun, in the clock that Redis has as well.
MODULE = """
import pathlib, time
from credhook import GiveUp, Handlers, Retry

handlers = Handlers("mine")

@handlers.on("openid4vc.issuance.completed")
async def seen(event, context):
    with open("seen", "a") as file:
        print(event.webhook_id, time.time(), file=file)
"""


@dataclass
class Dev:
    """A session under way."""

    folder: Path
    process: "subprocess.Popen[bytes]"
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def shows(self, pattern: str, times: int = 1) -> str:
        """What it prints, once the pattern is in it so often."""

        def shown() -> str:
            text = self.text
            ended = self.process.poll() is not None
            found = len(re.findall(pattern, text, re.MULTILINE)) >= times
            assert found or not ended, f"it has ended without {pattern!r}:\n{text}"
            return text if found else ""

        try:
            return until(shown, what=pattern, within=90)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text}") from None

    def ready(self, times: int) -> None:
        """Return once the worker has started so often."""
        self.shows(r"  ready(  |$)", times)

    def save(self, text: str) -> None:
        """Save accounts.py as an editor does: whole, or not at all."""
        (self.folder / "accounts.py~").write_text(text)
        (self.folder / "accounts.py~").rename(self.folder / "accounts.py")

    @property
    def environment(self) -> dict[str, str]:
        """What the file that it names says, as a shell would have it."""
        (path,) = self.folder.glob(".credhook-*/env")
        words = (shlex.split(line)[0] for line in path.read_text().splitlines())
        return dict(word.split("=", 1) for word in words)

    def happens(self, event_type: str = COMPLETED, **more: object) -> list[str]:
        """Make it happen on the platform that it plays; the resources' ids."""
        url = self.environment["CREDHOOK_SANDBOX_URL"]
        answer = plain.post(f"{url}/sandbox/events", json={"eventType": event_type, **more})
        return [each["resourceId"] for each in answer.raise_for_status().json()["data"]]

    def events(self, *arguments: str) -> str:
        """`credhook events …` in another terminal."""
        environment = {"PATH": os.environ["PATH"], **self.environment}
        done = invoke("events", *arguments, environment=environment, folder=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def records(self) -> dict[str, dict[str, Any]]:
        """The store, by webhook-id."""
        lines = self.events("list", "--limit", "100000", "--json").splitlines()
        return {record["webhook_id"]: record for record in map(json.loads, lines)}

    def stop(self, number: signal.Signals = signal.SIGINT) -> str:
        """End it; all that it has printed."""
        self.process.send_signal(number)
        self.process.wait(60)
        return self.text


@contextmanager
def developing(
    folder: Path, *arguments: str, environ: dict[str, str] | None = None, terminal: int | None = None
) -> Iterator[Dev]:
    """Run `credhook dev …` in a folder; at a terminal, if there is one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CREDHOOK_", "REDIS_"))}
    output = folder.with_name(f"{folder.name}.out")
    with output.open("wb") as file:
        process = start(
            ["-P", "-m", "credhook", "dev", *arguments],
            cwd=folder,
            env=kept | (environ or {}),
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=None if terminal is None else take_terminal,
        )
    try:
        yield Dev(folder, process, output)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def left_running(folder: Path) -> list[str]:
    """Processes that have the folder in their command line, or work in it: Redis writes a command line of its own."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if str(folder) in line or (process / "cwd").readlink().is_relative_to(folder):
                found.append(line)
        except OSError:
            continue
    return found


def nothing_is_left(folder: Path) -> bool:
    """Whether nothing runs there any more, once what has been told to end has had its time."""
    until(lambda: not left_running(folder), what="the end of what runs there")
    return not list(folder.glob(".credhook*"))
