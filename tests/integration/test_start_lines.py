"""What is said at start: what is set in vain, and what is in force."""

import json
from pathlib import Path

import pytest

from support.process.serving import Process, receiver
from support.waiting import until
from support.worker.harness import Harness

SAID = (
    "CREDHOOK_HANDLER is not a setting; did you mean CREDHOOK_HANDLERS?; "
    "CREDHOOK_QUEUES is not a setting; did you mean CREDHOOK_QUEUE?"
)


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
def test_a_parent_names_unknown_settings_and_its_children_do_not(
    harness: Harness, redis_url: str, command: str, options: tuple[str, ...]
) -> None:
    (harness.folder / "CREDHOOK_QUEUES").write_text("two")
    wrong = {"CREDHOOK_HANDLER": "plugin", "CREDENTIALS_DIRECTORY": str(harness.folder)}
    if command == "receiver":
        process: Process = receiver(harness.folder, redis_url, options=options, **wrong)
    else:
        process = harness.worker("worker", *options, **wrong)
    with process:
        until(lambda: f'"{command}_started"' in process.text, what="the start")
        assert process.stop() == 0
    (line,) = [json.loads(line) for line in process.text.splitlines() if '"unknown_settings"' in line]
    assert (line["level"], line["hint"]) == ("warning", SAID)


def test_no_worker_starts_without_handlers(harness: Harness) -> None:
    with harness.worker(CREDHOOK_HANDLERS=" , ") as worker:
        assert worker.process.wait(60) == 2
    assert worker.text.splitlines()[-1].startswith("Error: no handlers: set CREDHOOK_HANDLERS=module")
