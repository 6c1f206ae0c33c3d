"""`credhook dev` with a module of the author's: what is shown, what a save does, what is left."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

from credhook.sandbox.local.dev import REPLAY_COMMAND
from credhook.sandbox.local.environment import free_port
from support import plain
from support.process.commands import invoke
from support.process.dev_process import MODULE, Dev, developing, left_running, nothing_is_left
from support.waiting import until

#: It fails, and would come back by itself long after the test.
FAILING = (
    MODULE.replace('completed")', 'completed", backoff=Backoff(first=600, longest=600))').replace(
        "import G", "import Backoff, G"
    )
    + "    raise ValueError('not today')\n"
)


def an_event_is_shown_with_its_handler_its_outcome_and_its_time(dev: Dev) -> None:
    (resource,) = dev.happens()
    dev.shows(rf"^\d\d:\d\d:\d\d  issuance\.completed +{resource}  done  handlers=mine\.seen  ms=[\d.]+$")
    (other,) = dev.happens("openid4vc.verification.requested")
    dev.shows(rf"verification\.requested +{other}  no handler for it  ")
    assert "accounts, named by the command line" in dev.text
    assert f"credhook trigger issuance.completed --url {dev.environment['CREDHOOK_SANDBOX_URL']}" in dev.text


def what_has_failed_before_a_save_is_mended_and_replayed(dev: Dev) -> None:
    dev.save(FAILING)
    dev.ready(2)
    (resource,) = dev.happens()
    dev.shows(
        rf"{resource}  mine\.seen  failed  error=ValueError  ms=[\d.]+\n +not today\n +accounts\.py:11 seen\n"
        rf".*{resource}  waiting  error=mine\.seen: ValueError  seconds=[\d.]+"
    )
    dev.save("import nowhere\n" + MODULE)
    text = dev.shows(r"^the worker has ended with 2; it starts again when a file is saved$")
    (shown,) = re.findall(r"^.*No module named.*$", text, re.MULTILINE)
    assert re.fullmatch(r"Error: handlers accounts: \S*accounts\.py:1: ModuleNotFoundError: No .* 'nowhere'", shown)
    before = dev.environment
    dev.save(MODULE)
    dev.ready(3)
    assert dev.environment == before
    (replay,) = re.findall(r"^replay +credhook events (replay .*)$", dev.text, re.MULTILINE)
    dev.events(*replay.split())
    dev.shows(rf"{resource}  done  handlers=mine\.seen  ")
    assert {one["state"] for one in dev.records().values() if one["resource_id"] == resource} == {"done"}


def a_handler_that_gives_up_is_dead_with_its_reason(dev: Dev) -> None:
    dev.save(MODULE + "    breakpoint()\n    raise GiveUp('account is closed')\n")
    dev.ready(4)
    (resource,) = dev.happens()
    told = rf"{resource}  mine\.seen  failed  .*\n +account is closed\n +accounts\.py:12 seen\n.*{resource}  dead  "
    dev.shows(told)
    assert dev.events(*REPLAY_COMMAND.split()[1:]) == "replayed 1\n"
    dev.shows(told, times=2)
    assert re.search(rf"{resource}  mine\.seen  breakpoint_skipped\n +Run credhook dev --debug in a terminal", dev.text)


def a_handler_that_computes_on_the_loop_is_named_while_it_does(dev: Dev) -> None:
    dev.save(MODULE + "    while not pathlib.Path('enough').exists():\n        pass\n")
    dev.ready(6)
    dev.happens()
    dev.shows(r"  blocks the event loop\n +accounts\.py:1[12] seen\n +Make the handler a plain def, ")
    (dev.folder / "enough").touch()


def a_handler_that_blocks_is_named_with_its_line(dev: Dev) -> None:
    dev.save(MODULE.replace('completed")', 'completed", retries=0)') + "    time.sleep(3)\n")
    dev.ready(5)
    (resource,) = dev.happens()
    dev.shows(
        rf"{resource}  mine\.seen  failed  error=BlockingError  .*\n +Blocking call to time\.sleep\n"
        rf" +accounts\.py:11 seen\n +Make the handler a plain def, .*\n.*{resource}  dead  "
    )


def a_save_lets_the_handler_that_runs_finish(dev: Dev) -> None:
    slow = "    import asyncio\n    open('begun', 'w')\n    await asyncio.sleep(2)\n    with open"
    dev.save(MODULE.replace("    with open", slow))
    dev.ready(7)
    (resource,) = dev.happens()
    until((dev.folder / "begun").exists, what="the handler")
    dev.save(MODULE)
    dev.ready(8)
    dev.shows(rf"{resource}  done  handlers=mine\.seen  ")
    (webhook_id,) = (name for name, record in dev.records().items() if record["resource_id"] == resource)
    assert (dev.folder / "seen").read_text().count(webhook_id) == 1


def it_ends_in_order(dev: Dev) -> None:
    assert len(left_running(dev.folder)) >= 5
    assert dev.stop(signal.SIGINT).endswith("stopped; nothing is left running\n")
    assert dev.process.returncode == 0
    assert nothing_is_left(dev.folder)


def test_a_session_from_the_first_event_to_ctrl_c(folder: Path) -> None:
    """One session for all of it, as an author has it: four processes take seconds to start."""
    with developing(folder, "accounts") as dev:
        dev.ready(1)
        an_event_is_shown_with_its_handler_its_outcome_and_its_time(dev)
        what_has_failed_before_a_save_is_mended_and_replayed(dev)
        a_handler_that_gives_up_is_dead_with_its_reason(dev)
        a_handler_that_blocks_is_named_with_its_line(dev)
        a_handler_that_computes_on_the_loop_is_named_while_it_does(dev)
        a_save_lets_the_handler_that_runs_finish(dev)
        (kept,) = folder.glob(".credhook-*")
        written = {"accounts.py", "__pycache__", kept.name, "seen", "begun", "enough"}
        assert {path.name for path in folder.iterdir()} <= written
        it_ends_in_order(dev)


#: An `async def` that stops blocks the event loop; a plain function runs in a thread.
STOPPING = """
@handlers.on("openid4vc.issuance.offered", timeout=0.5)
async def stops(event, context):
    breakpoint()

@handlers.on("openid4vc.issuance.failed", timeout=0.5)
def stops_in_a_thread(event, context):
    breakpoint()
"""
STOPS = {"openid4vc.issuance.offered": "stops", "openid4vc.issuance.failed": "stops_in_a_thread"}


def a_second_terminal_finds_the_session(folder: Path) -> None:
    """In the same folder, without any setting."""
    environment = {"PATH": os.environ["PATH"]}
    listed = invoke("handlers", "list", environment=environment, folder=folder)
    assert re.findall(r"^\S+\.seen", listed.stdout, re.MULTILINE) == ["mine.seen", "more.seen"]
    own = invoke("handlers", "list", environment={**environment, "CREDHOOK_HANDLERS": "more"}, folder=folder)
    assert re.findall(r"^\S+\.seen", own.stdout, re.MULTILINE) == ["more.seen"]  # Its own setting stays.
    events = invoke("events", "list", "--json", environment=environment, folder=folder)
    assert (events.returncode, events.stdout.count('"state": "done"')) == (0, 1), events.stderr
    assert re.fullmatch(
        r"credhook: with the settings of `credhook dev`, \.credhook-\w+/env; delete its .+\n", events.stderr
    )
    (settings,) = folder.glob(".credhook-*/env")
    assert "CREDHOOK_DEV=1\n" in settings.read_text()  # `events run` shows the messages of errors.
    script = "import os; from credhook import Api; Api.from_env().users.list(); print(os.environ.get('REDIS_URL'))"
    for redis in "None", "redis://application":  # An application's own Redis, if it has one, is left alone.
        set_here = environment if redis == "None" else {**environment, "REDIS_URL": redis}
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=folder,
            env=set_here,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout == f"{redis}\n"
        assert "with the settings of `credhook dev`" in done.stderr
    elsewhere = {**environment, "REDIS_URL": "redis://127.0.0.1:1/0"}
    assert "settings of" not in invoke("events", "list", environment=elsewhere, folder=folder).stderr


def test_keys_make_things_happen_replay_and_quit(folder: Path) -> None:
    text = MODULE + "    if not pathlib.Path('mended').exists():\n        raise Retry(after=600)\n"
    (folder / "accounts.py").write_text(text)
    (folder / "more.py").write_text(MODULE.replace('"mine"', '"more"').replace("completed", "failed"))
    ours, theirs = pty.openpty()
    admin = f"127.0.0.1:{free_port()}"
    with developing(folder, "accounts", "more", terminal=theirs, environ={"CREDHOOK_ADMIN": admin}) as dev:
        dev.shows(r"  ready  handlers=mine\.seen, more\.seen$")
        os.write(ours, b"i")
        dev.shows(r"  mine\.seen  chose to run again  reason=Retry  ms=")
        dev.shows(r"  waiting  .*seconds=600")
        os.write(ours, b"e")
        dev.shows(r"^erased 1$")
        os.write(ours, b"i")
        dev.shows(r"  waiting  .*seconds=600", times=2)
        (folder / "mended").touch()
        os.write(ours, b"r")
        dev.shows(r"^replayed 1$")
        dev.shows(r"  done  handlers=mine\.seen")
        a_second_terminal_finds_the_session(folder)
        assert f"admin      http://{admin}/metrics, of the worker" in dev.text
        assert 'part="worker"' in plain.get(f"http://{admin}/metrics").text
        os.write(ours, b"?")
        dev.shows(r"^settings   set -a; ", times=2)
        dev.shows(r"^  x  verification\.data --no-is-valid$", times=2)
        assert not termios.tcgetattr(theirs)[3] & termios.ECHO
        os.write(ours, b"q")
        assert dev.process.wait(60) == 0
    shell = termios.ICANON | termios.ECHO
    assert termios.tcgetattr(theirs)[3] & shell == shell
    assert nothing_is_left(folder)


def test_debug_gives_breakpoints_the_terminal(folder: Path) -> None:
    (folder / "accounts.py").write_text(MODULE + STOPPING)
    ours, theirs = pty.openpty()
    with developing(folder, "--debug", "accounts", terminal=theirs) as dev:
        dev.shows("worker_started")
        for number, (event_type, name) in enumerate(STOPS.items(), start=1):
            dev.happens(event_type)
            dev.shows(r"\(Pdb\) ", times=2 * number - 1)
            os.write(ours, b"p event.type * 2\n")
            dev.shows(event_type * 2)
            dev.shows(r"\(Pdb\) ", times=2 * number)
            time.sleep(0.6)  # More than the handler's timeout.
            os.write(ours, b"c\n")
            dev.shows(rf"event_done .*mine\.{name}\W")
        os.write(ours, b"\x03")  # Ctrl-C
        assert dev.process.wait(60) == 0
    assert nothing_is_left(folder)


def test_debug_without_a_terminal_is_wrong_usage(folder: Path) -> None:
    with developing(folder, "--debug", "accounts") as dev:
        assert dev.process.wait(60) == 2
        assert "--debug needs a terminal" in dev.text


def test_built_in_handler_runs_without_a_module_until_the_terminal_closes(tmp_path: Path, redis_url: str) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    shared = {"HOST": "nowhere", "PORT": "1", "CREDHOOK_QUEUE": "shared", "CREDHOOK_TLS_KEYFILE": "nowhere"}
    ours, theirs = pty.openpty()
    with developing(folder, environ=shared | {"REDIS_URL": redis_url}, terminal=theirs) as dev:
        dev.ready(1)
        assert (dev.environment["REDIS_URL"], dev.environment["CREDHOOK_QUEUE"] != "shared") == (redis_url, True)
        (resource,) = dev.happens()
        dev.shows(rf"{resource}  done  handlers=log\.event")
        assert "Name yours: credhook dev accounts" in dev.text
        os.close(theirs)
        os.close(ours)
        assert dev.process.wait(60) == 0, dev.text
    assert nothing_is_left(folder)
    assert [*folder.iterdir()] == []
