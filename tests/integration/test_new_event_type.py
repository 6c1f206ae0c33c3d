"""A new event type is a row in `credhook/events.py` and a row in the sandbox's table, and nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEW = "openid4vc.issuance.revoked"
#: File → the row after which the new one stands, and the new row.
ROWS = {
    "credhook/events.py": (
        'EventType("openid4vc.issuance.expired", rank=3),\n',
        f'        EventType("{NEW}", rank=4),\n',
    ),
    "sandbox/events.py": (
        '"openid4vc.issuance.expired": EventRule("issuance", "expired", ("offered",), ("expired", "expired")),\n',
        f'    "{NEW}": EventRule("issuance", "revoked", ("completed",), ("revoked", "revoked")),\n',
    ),
}


def test_a_new_event_type_is_delivered_fetched_and_handled_once_it_is_in_both_tables(tmp_path: Path) -> None:
    for folder in ("credhook", "receiver", "worker", "sandbox"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Procfile", tmp_path)
    for name, (before, row) in ROWS.items():
        text = (tmp_path / name).read_text()
        assert text.count(before) == 1
        (tmp_path / name).write_text(text.replace(before, before + row))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CREDHOOK_")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "credhook", "demo"],
        env={**environment, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert NEW in done.stdout
    assert "11 events, each delivered twice and handled exactly once" in done.stdout
