"""Handlers that do not import, as a process that `credhook dev` has started tells of them."""

import json
import os
from pathlib import Path

import pytest
from commands import credhook


@pytest.mark.parametrize(
    ("code", "frame"),
    [("def (:\n", "broken.py:1"), ("\n1 / 0\n", "broken.py:2 <module>"), ("import nowhere", "broken.py:1 <module>")],
)
def test_a_module_that_does_not_import_is_shown_by_its_own_frames(tmp_path: Path, code: str, frame: str) -> None:
    (tmp_path / "broken.py").write_text(code)
    environment = {"PATH": os.environ["PATH"], "CREDHOOK_HANDLERS": "broken", "CREDHOOK_LOG": "json"}
    done = credhook("handlers", "list", environment=environment | {"CREDHOOK_DEV": "1"}, folder=tmp_path)
    line = json.loads(done.stderr.splitlines()[0])
    assert (line["event"], line["handlers"], line["frames"]) == ("handlers_not_loaded", "broken", [frame])
    assert done.returncode == 2
    done = credhook("handlers", "list", environment=environment, folder=tmp_path)
    assert done.stderr.count("\n") == 1
    assert "frames" not in done.stderr
