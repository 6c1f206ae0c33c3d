"""What is said at start: what is set in vain, and what is in force."""

import json
from pathlib import Path

import commands
import pytest
from harness import Harness
from serving import Process, receiver
from waiting import until

WRONG = {"CREDHOOK_HANDLER": "plugin", "CREDHOOK_QUEUES": "two"}
SAID = (
    "CREDHOOK_HANDLER is not a setting; did you mean CREDHOOK_HANDLERS?; "
    "CREDHOOK_QUEUES is not a setting; did you mean CREDHOOK_QUEUE?"
)


def test_unknown_settings_are_named_in_one_line_and_the_command_goes_on(tmp_path: Path) -> None:
    (tmp_path / "CREDHOOK_QUEUES").write_text("two")
    environment = WRONG | {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    environment |= {"CREDHOOK_HANDLERS": "credhook.worker.handlers.logging_handler"}
    del environment["CREDHOOK_QUEUES"]
    done = commands.credhook("handlers", "list", environment=environment, folder=tmp_path)
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (line["event"], line["level"], line["hint"]) == ("unknown_settings", "warning", SAID)
    assert done.returncode == 0


def test_the_start_lines_show_what_was_set_and_no_secret(harness: Harness, tmp_path: Path, redis_url: str) -> None:
    with harness.worker(CREDHOOK_GRACE="3") as worker, receiver(tmp_path, redis_url) as process:
        for log, event in ((worker, "worker_started"), (process, "receiver_started")):
            until(lambda log=log, event=event: f'"{event}"' in log.text, what=event)  # type: ignore[misc]
    for log, event, name, shown in (
        (worker, "worker_started", "CREDHOOK_GRACE", 3.0),
        (worker, "worker_started", "CREDHOOK_CLIENT_SECRET", "**********"),
        (process, "receiver_started", "CREDHOOK_WEBHOOK_SECRETS", "**********"),
    ):
        (line,) = [json.loads(line) for line in log.text.splitlines() if f'"{event}"' in line]
        assert line["settings"][name] == shown
        assert "CREDHOOK_RETENTION" not in line["settings"]


@pytest.mark.parametrize(("command", "options"), [("receiver", ("--workers", "2")), ("worker", ("--processes", "2"))])
def test_a_parent_names_them_and_its_children_do_not(
    harness: Harness, redis_url: str, command: str, options: tuple[str, ...]
) -> None:
    if command == "receiver":
        process: Process = receiver(harness.folder, redis_url, options=options, **WRONG)
    else:
        process = harness.worker("worker", *options, **WRONG)
    with process:
        until(lambda: f'"{command}_started"' in process.text, what="the start")
        assert process.stop() == 0
    assert process.text.count('"unknown_settings"') == 1
