"""Saves while events come: each is handled, and none again once it is recorded as done."""

from datetime import datetime
from pathlib import Path

import pytest

from credhook.sandbox.local.dev import saved_files
from credhook.sandbox.local.environment import CannotStart
from support.process.dev_process import MODULE, developing
from support.process.growing_files import whole_lines
from support.waiting import until

#: Long enough for saves to find some under way.
SLOW = MODULE.replace("import pathlib, time", "import asyncio, pathlib, time") + "    await asyncio.sleep(0.2)\n"


@pytest.mark.parametrize(
    ("saves", "events"), [(2, 20), pytest.param(50, 1_000, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)])]
)
def test_saves_while_events_come_lose_none_and_repeat_none_that_is_done(folder: Path, saves: int, events: int) -> None:
    (folder / "accounts.py").write_text(SLOW)
    with developing(folder, "accounts") as dev:
        dev.ready(1)
        for number in range(1, saves + 1):
            dev.happens(count=events // saves)
            dev.save(SLOW + f"# {number}\n")
            dev.ready(1 + number)
        until(lambda: len(whole_lines(folder / "seen")) >= events, what="every event", within=120)
        until(lambda: {one["state"] for one in dev.records().values()} == {"done"}, what="every event done")
        dev.shows(" done ", events)
        records = dev.records()
        settled = {key: datetime.fromisoformat(record["settled_at"]).timestamp() for key, record in records.items()}
        text = dev.stop()
    runs = [line.split() for line in (folder / "seen").read_text().splitlines()]
    assert len(records) == events
    assert {webhook_id for webhook_id, _ in runs} == records.keys()
    after = [webhook_id for webhook_id, began in runs if float(began) > settled[webhook_id] + 0.001]
    assert after == []
    assert text.count(" done ") == events
    print(f"{saves} saves, {events} events, {len(runs)} runs, none after its event was done")  # noqa: T201  For `make soak`.


def test_links_are_not_followed_and_new_folders_are_watched(tmp_path: Path) -> None:
    (tmp_path / "disk").symlink_to("/")
    saves = saved_files([tmp_path])
    assert next(saves) == []
    (tmp_path / "package").mkdir()
    until(lambda: not next(saves), what="a look at the new folder")
    for _ in range(20):  # The folder is watched some turns later.
        next(saves)
    (tmp_path / "package" / "new.py").touch()
    assert until(lambda: next(saves), what="the save") == ["new.py"]


def test_a_test_that_is_saved_is_no_reason_to_start_anew(tmp_path: Path) -> None:
    saves = saved_files([tmp_path])
    assert next(saves) == []
    for name in ("test_accounts.py", "accounts_test.py", "conftest.py", "notes.txt", "contest.py"):
        (tmp_path / name).touch()
    assert until(lambda: next(saves), what="the last") == ["contest.py"]
    with pytest.raises(CannotStart, match="files cannot be watched"):
        next(saved_files([tmp_path / "nowhere"]))
