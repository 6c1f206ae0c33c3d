"""What is set in vain is said where the one who has set it looks."""

import json
from pathlib import Path

import commands
from harness import Harness
from serving import receiver
from waiting import until

WRONG = {"CREDHOOK_HANDLER": "plugin", "CREDHOOK_QUEUES": "two"}
SAID = (
    "CREDHOOK_HANDLER is not a setting; did you mean CREDHOOK_HANDLERS?; "
    "CREDHOOK_QUEUES is not a setting; did you mean CREDHOOK_QUEUE?"
)


def test_a_command_says_it_in_one_line_and_goes_on(tmp_path: Path) -> None:
    environment = WRONG | {"CREDHOOK_HANDLERS": "credhook.worker.handlers.logging_handler"}
    done = commands.credhook("handlers", "list", environment=environment, folder=tmp_path)
    assert done.stderr == f"credhook: {SAID}\n"
    assert done.returncode == 0


def test_a_worker_says_it_once_in_its_log(harness: Harness) -> None:
    with harness.worker(**WRONG) as worker:
        until(lambda: '"worker_started"' in worker.text, what="the worker")
    (line,) = [json.loads(line) for line in worker.text.splitlines() if "CREDHOOK_QUEUES" in line]
    assert (line["event"], line["level"], line["hint"]) == ("unknown_settings", "warning", SAID)


def test_so_does_a_receiver_of_several_processes(tmp_path: Path, redis_url: str) -> None:
    with receiver(tmp_path, redis_url, options=("--workers", "2"), **WRONG) as process:
        pass
    assert process.text.count('"unknown_settings"') == 1
