"""Commands on terminals whose encoding lacks characters of the store's texts, and with streams that take nothing."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis import Redis

from credhook.store import State
from credhook.store.announcements import ReceiverAnnouncement
from support.process.commands import start
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


def on_terminal(name: str, folder: Path, *arguments: str, **settings: str) -> "subprocess.Popen[bytes]":
    """Start `credhook …` on this terminal."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    environment = kept | settings | TERMINALS[name][0]
    pipe = subprocess.PIPE
    return start(["-m", "credhook", *arguments], env=environment, cwd=folder, stdout=pipe, stderr=pipe)


@pytest.mark.parametrize(
    ("terminal", "command"),
    [
        ("C", ("events", "list")),
        ("latin-1", ("events", "list")),
        ("latin-1", ("events", "show", "m1")),
        ("latin-1", ("status",)),
    ],
)
def test_command_shows_texts_of_the_store_on_any_terminal(
    redis_client: Redis, redis_url: str, tmp_path: Path, terminal: str, command: tuple[str, ...]
) -> None:
    plant(redis_client, "m1", State.DEAD, resource=OUTSIDE)
    receiver = ReceiverAnnouncement(
        queue="credhook", version="1", host=OUTSIDE, durability="strict", config_fingerprint={}
    )
    now = int(time.time() * 1000)
    redis_client.hset(INDEX.receivers, "token", f"{now} {now} {receiver.model_dump_json()}")
    process = on_terminal(terminal, tmp_path, *command, REDIS_URL=redis_url)
    out, errors = process.communicate(timeout=120)
    assert errors == b""
    assert TERMINALS[terminal][1] in out
    assert process.returncode == (1 if command == ("status",) else 0)


def test_tail_shows_changes_on_any_terminal(redis_client: Redis, redis_url: str, tmp_path: Path) -> None:
    with on_terminal("latin-1", tmp_path, "events", "tail", REDIS_URL=redis_url) as running:
        try:
            until(lambda: dict(redis_client.pubsub_numsub(INDEX.changes))[INDEX.changes.encode()], what="a watcher")
            accept(redis_url, "m1", COMPLETED, OUTSIDE)
            assert running.stdout is not None
            assert TERMINALS["latin-1"][1] in running.stdout.readline()
        finally:
            running.kill()


def test_handlers_are_listed_on_any_terminal(tmp_path: Path) -> None:
    (tmp_path / "ë☃.py").write_text(HANDLER, encoding="utf-8")
    process = on_terminal("C", tmp_path, "handlers", "list", CREDHOOK_HANDLERS="ë☃")
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, b"")
    assert b"accounts.activate  coroutine" in out


@pytest.mark.parametrize(
    ("command", "streams", "code", "errors"),
    [
        (("--help",), ">/dev/full", 1, b"credhook: cannot write the output: No space left on device\n"),
        (("events", "list"), ">/dev/full", 1, b"credhook: cannot write the output: No space left on device\n"),
        (("events", "list"), ">file", 1, b"credhook: cannot write the output: File too large\n"),
        (("events", "list"), "<&- >&-", 0, b""),
        (("events", "list"), "2>&-", 0, b""),
        (("status",), ">&-", 1, b""),
    ],
)
def test_command_ends_in_order_if_nothing_takes_its_output(
    redis_url: str, tmp_path: Path, command: tuple[str, ...], streams: str, code: int, errors: bytes
) -> None:
    shell = ["-c", f'ulimit -f 0; exec "$0" "$@" {streams}', sys.executable, "-m", "credhook", *command]
    environment = os.environ | {"REDIS_URL": redis_url}
    with start(shell, python="sh", env=environment, cwd=tmp_path, stdout=-1, stderr=-1) as process:
        assert process.communicate(timeout=120)[1] == errors
    assert process.returncode == code


#: Runs a program as the first process of a container.
FIRST = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
CAN_BE_FIRST = shutil.which("unshare") and not subprocess.call([*FIRST, "true"], stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("number", "prefix"),
    [
        ("SIGINT", ()),
        pytest.param("SIGTERM", FIRST, marks=pytest.mark.skipif(not CAN_BE_FIRST, reason="unshare is not permitted")),
    ],
)
def test_signal_during_an_import_ends_the_command_in_one_line(
    redis_url: str, tmp_path: Path, number: str, prefix: tuple[str, ...]
) -> None:
    module = f"import os, signal, time\nos.kill(os.getpid(), signal.{number})\ntime.sleep(60)"
    (tmp_path / "structlog.py").write_text(module, encoding="utf-8")
    words = [*prefix, sys.executable, "-m", "credhook", "status"]
    environment = os.environ | {"REDIS_URL": redis_url}
    with start(words[1:], python=words[0], env=environment, cwd=tmp_path, stdout=-1, stderr=-1) as process:
        assert process.communicate(timeout=50) == (b"", b"Aborted!\n")
    assert process.returncode == 1
