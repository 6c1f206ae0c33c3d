"""Commands on terminals whose encoding lacks characters of the store's texts."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis import Redis

from credhook.store import State
from credhook.store.announcements import ReceiverAnnouncement
from support.store.accepting import accept
from support.store.stored_events import plant
from support.store.stores import INDEX
from support.waiting import until
from support.worker.harness import COMPLETED

#: Latin-1 has the ë and no snowman. A terminal would obey the rest.
OUTSIDE = "Zoë\N{SNOWMAN}\x1b[2J"
#: The environment of each terminal, and how it shows the text.
TERMINALS = {
    "latin-1": ({"PYTHONIOENCODING": "latin-1"}, "Zoë\\u2603\\x1b[2J".encode("latin-1")),
    "C": ({"LC_ALL": "C"}, "Zoë\N{SNOWMAN}\\x1b[2J".encode()),
}

HANDLER = """
from credhook import Handlers

handlers = Handlers("accounts")


@handlers.on("*")
async def activate(event, context): ...
"""


@pytest.fixture(params=TERMINALS)
def terminal(request: pytest.FixtureRequest, redis_url: str) -> tuple[dict[str, str], bytes]:
    """The environment of a command on this terminal, and how the terminal shows the text from outside."""
    settings, shown = TERMINALS[request.param]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    return kept | {"REDIS_URL": redis_url} | settings, shown


def run(environment: dict[str, str], *arguments: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "credhook", *arguments]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize("command", [("events", "list"), ("events", "show", "m1"), ("status",)], ids=" ".join)
def test_command_shows_texts_of_the_store_on_any_terminal(
    terminal: tuple[dict[str, str], bytes], redis_client: Redis, tmp_path: Path, command: tuple[str, ...]
) -> None:
    environment, shown = terminal
    plant(redis_client, "m1", State.DEAD, resource=OUTSIDE)
    receiver = ReceiverAnnouncement(
        queue="credhook", version="1", host=OUTSIDE, durability="strict", config_fingerprint={}
    )
    now = int(time.time() * 1000)
    redis_client.hset(INDEX.receivers, "token", f"{now} {now} {receiver.model_dump_json()}")
    done = run(environment, *command, folder=tmp_path)
    assert done.stderr == b""
    assert shown in done.stdout
    assert done.returncode == (1 if command == ("status",) else 0)


def test_tail_shows_changes_on_any_terminal(
    terminal: tuple[dict[str, str], bytes], redis_client: Redis, redis_url: str, tmp_path: Path
) -> None:
    environment, shown = terminal
    command = [sys.executable, "-m", "credhook", "events", "tail"]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE) as running:
        try:
            until(lambda: dict(redis_client.pubsub_numsub(INDEX.changes))[INDEX.changes.encode()], what="a watcher")
            accept(redis_url, "m1", COMPLETED, OUTSIDE)
            assert running.stdout is not None
            assert shown in running.stdout.readline()
        finally:
            running.kill()


def test_handlers_are_listed_on_any_terminal(terminal: tuple[dict[str, str], bytes], tmp_path: Path) -> None:
    (tmp_path / "ë☃.py").write_text(HANDLER, encoding="utf-8")
    environment, _ = terminal
    done = run(environment | {"CREDHOOK_HANDLERS": "ë☃"}, "handlers", "list", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"accounts.activate  coroutine" in done.stdout


def test_unicode_is_shown_as_it_is_on_a_terminal_that_has_it(
    redis_client: Redis, redis_url: str, tmp_path: Path
) -> None:
    plant(redis_client, "m1", State.DEAD, resource=OUTSIDE)
    done = run(os.environ | {"REDIS_URL": redis_url, "PYTHONIOENCODING": "utf-8"}, "events", "list", folder=tmp_path)
    assert "Zoë\N{SNOWMAN}\\x1b[2J" in done.stdout.decode()
